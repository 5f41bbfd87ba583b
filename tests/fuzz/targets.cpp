#include "fuzz/targets.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "hf/model_config.h"
#include "hf/safetensors.h"
#include "hf/weight_shapes.h"
#include "io/error.h"

namespace hero::fuzz {
namespace {

const std::string kFile = "fuzzed";

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "finding: %s\n", what);
  std::abort();
}

// Parses a heap copy, so that AddressSanitizer detects out-of-bounds reads.
template <class Parse>
bool accepted(std::string_view bytes, Parse parse) {
  const auto copy = std::make_unique<char[]>(bytes.size());
  std::ranges::copy(bytes, copy.get());
  try {
    parse(std::string_view(copy.get(), bytes.size()));
    return true;
  } catch (const UserError& error) {
    const std::string_view what = error.what();
    require(what.starts_with(kFile), "an error message without the file name");
    require(std::ranges::none_of(what, [](unsigned char c) { return c < 0x20; }),
            "an error message with several lines");
    require(what.size() < 1000, "an overlong error message");
    return false;
  }
}

struct LimitReached {};

}  // namespace

bool read_safetensors(std::string_view bytes) {
  return accepted(bytes, [](std::string_view file) {
    size_t total = 0;
    for (const TensorView& tensor : parse_safetensors(file, kFile).tensors) {
      const auto* data = static_cast<const char*>(tensor.data);
      const size_t size = tensor.bytes();
      require(data >= file.data() && data + size <= file.data() + file.size(), "a view outside the file");
      if (size > 0) {
        [[maybe_unused]] const volatile char first = data[0], last = data[size - 1];
      }
      total += size;
    }
    require(total < file.size(), "tensors larger than their file");
  });
}

bool read_index(std::string_view bytes) {
  return accepted(bytes, [](std::string_view file) {
    for (const auto& [tensor, shard] : parse_index(file, kFile)) {
      require(!shard.empty() && shard != ".." && shard.find('/') == std::string::npos,
              "a path outside the folder");
    }
  });
}

bool read_config(std::string_view bytes) {
  return accepted(bytes, [](std::string_view file) {
    const Config config = parse_model_config(file, kFile);
    int64_t remaining = 1000;
    try {
      for_each_weight(config, [&](const std::string&, const std::vector<int64_t>& shape) {
        require(std::ranges::all_of(shape, [](int64_t size) { return size > 0; }),
                "a tensor with an empty dimension");
        if (--remaining == 0) throw LimitReached();
      });
    } catch (const LimitReached&) {
    }
  });
}

std::span<const Target> targets() {
  static constexpr Target all[] = {
      {"safetensors", read_safetensors}, {"index", read_index}, {"config", read_config}};
  return all;
}

}  // namespace hero::fuzz
