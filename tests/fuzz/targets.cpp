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

void demand(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "found: %s\n", what);
  std::abort();
}

// Runs the parser on a copy of its own, whose ends a sanitizer watches.
template <class Parse>
bool accepted(std::string_view bytes, Parse parse) {
  const auto copy = std::make_unique<char[]>(bytes.size());
  std::ranges::copy(bytes, copy.get());
  try {
    parse(std::string_view(copy.get(), bytes.size()));
    return true;
  } catch (const UserError& error) {
    const std::string_view what = error.what();
    demand(what.starts_with(kFile), "a refusal that does not name the file");
    demand(std::ranges::none_of(what, [](unsigned char c) { return c < 0x20; }), "a refusal of two lines");
    demand(what.size() < 1000, "a refusal without end");
    return false;
  }
}

struct Enough {};

}  // namespace

bool read_safetensors(std::string_view bytes) {
  return accepted(bytes, [](std::string_view file) {
    size_t total = 0;
    for (const TensorView& tensor : parse_safetensors(file, kFile).tensors) {
      const auto* data = static_cast<const char*>(tensor.data);
      const size_t size = tensor.bytes();
      demand(data >= file.data() && data + size <= file.data() + file.size(), "a view outside the file");
      if (size > 0) {
        [[maybe_unused]] const volatile char first = data[0], last = data[size - 1];
      }
      total += size;
    }
    demand(total < file.size(), "tensors larger than their file");
  });
}

bool read_index(std::string_view bytes) {
  return accepted(bytes, [](std::string_view file) {
    for (const auto& [tensor, shard] : parse_index(file, kFile)) {
      demand(!shard.empty() && shard != ".." && shard.find('/') == std::string::npos,
             "a way out of the folder");
    }
  });
}

bool read_config(std::string_view bytes) {
  return accepted(bytes, [](std::string_view file) {
    const Config config = parse_model_config(file, kFile);
    int64_t left = 1000;
    try {
      for_each_weight(config, [&](const std::string&, const std::vector<int64_t>& shape) {
        demand(std::ranges::all_of(shape, [](int64_t size) { return size > 0; }), "a tensor of no size");
        if (--left == 0) throw Enough();
      });
    } catch (const Enough&) {
    }
  });
}

std::span<const Target> targets() {
  static constexpr Target all[] = {
      {"safetensors", read_safetensors}, {"index", read_index}, {"config", read_config}};
  return all;
}

}  // namespace hero::fuzz
