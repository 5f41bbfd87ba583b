#include "fuzz/checks.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "io/utf8.h"

namespace hero::fuzz {

namespace fs = std::filesystem;

namespace {

constexpr size_t kLongestMessage = 2000;

struct TemporaryFolder {
  fs::path path = fs::temp_directory_path() / ("hero-fuzz-" + std::to_string(::getpid()));
  TemporaryFolder() { fs::create_directories(path); }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
};

}  // namespace

void require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "finding: %s\n", what.c_str());
  std::abort();
}

void check_message(std::string_view message, std::string_view file) {
  const auto complain = [&](const char* what) {
    require(false, what + std::string(": ") + std::string(message.substr(0, kLongestMessage)));
  };
  if (!message.starts_with(file)) complain("an error message without the file name");
  if (std::ranges::any_of(message, [](unsigned char c) { return c < 0x20; }))
    complain("an error message with several lines or control characters");
  if (message.size() > kLongestMessage) complain("an overlong error message");
}

std::string input_file(const std::string& name, std::string_view bytes) {
  static const TemporaryFolder folder;
  const std::string path = (folder.path / name).string();
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  require(out.flush().good(), "cannot write " + path);
  return path;
}

void check_tokenizer(const Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text);
  bool has_special = false;
  std::string bytes;
  for (const int32_t id : ids) {
    require(id >= 0 && id < tokenizer.vocab_size(), "an id outside the vocabulary");
    const std::string piece = tokenizer.bytes(id);
    has_special = has_special || piece.empty();
    bytes += piece;
  }
  const std::string decoded = tokenizer.decode(ids);
  require(find_invalid_utf8(decoded) == std::string::npos, "decoded text that is not UTF-8");
  if (tokenizer.lossless() && !has_special) {
    require(decoded == text, "a lossless tokenizer that changes \"" + std::string(text) + "\"");
    require(bytes == text, "bytes of ids that differ from the text");
  }
  Tokenizer::Cache cache;
  std::vector<int32_t> twice;
  tokenizer.encode(text, twice, cache);
  tokenizer.encode(text, twice, cache);
  require(twice.size() == 2 * ids.size() && std::equal(ids.begin(), ids.end(), twice.begin()) &&
              std::equal(ids.begin(), ids.end(), twice.begin() + std::ssize(ids)),
          "ids that depend on the cache");
}

}  // namespace hero::fuzz
