#include "data/indexed_dataset.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "io/cores.h"
#include "io/error.h"

namespace hero {

namespace {

constexpr int64_t kHeader = 34;
constexpr std::string_view kMagic("MMIDIDX\0\0", 9);

template <typename T>
T load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

// Calls f(T{}) with the token type.
template <typename F>
void with_type(TokenType type, F f) {
  switch (type) {
    case TokenType::u8:
      return f(uint8_t{});
    case TokenType::i8:
      return f(int8_t{});
    case TokenType::i16:
      return f(int16_t{});
    case TokenType::i32:
      return f(int32_t{});
    case TokenType::i64:
      return f(int64_t{});
    case TokenType::u16:
      return f(uint16_t{});
  }
}

std::string expected(const std::string& what, int64_t found, int64_t wanted) {
  return what + " " + std::to_string(found) + ", expected " + std::to_string(wanted);
}

// The first id that is not in the vocabulary, or `end`.
const int64_t* find_invalid(const int64_t* begin, const int64_t* end, int64_t vocab_size) {
  return std::find_if(begin, end, [&](int64_t id) { return id < 0 || id >= vocab_size; });
}

}  // namespace

int64_t token_bytes(TokenType type) {
  int64_t bytes = 0;
  with_type(type, [&](auto zero) { bytes = sizeof(zero); });
  return bytes;
}

const char* token_type_name(TokenType type) {
  constexpr const char* kNames[] = {"", "uint8", "int8", "int16", "int32", "int64", "", "", "uint16"};
  return kNames[static_cast<int>(type)];
}

std::string resolve_prefix(const std::string& prefix, const std::string& split) {
  std::string bare = prefix;
  if (bare.ends_with(".bin") || bare.ends_with(".idx")) bare.resize(bare.size() - 4);
  std::error_code error;
  const bool has_index = std::filesystem::exists(bare + ".idx", error);
  return !has_index && std::filesystem::exists(bare + "-" + split + ".idx", error) ? bare + "-" + split
                                                                                   : bare;
}

class IndexedDataset::MappedFile {
 public:
  explicit MappedFile(std::string file) : path(std::move(file)) {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) {
      throw UserError(path + ": cannot be opened (" + std::strerror(errno) +
                      "), expected Megatron token files, .bin and .idx");
    }
    struct stat status;
    const bool regular = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
    size = regular ? status.st_size : 0;
    void* const memory = size > 0 ? ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0) : MAP_FAILED;
    ::close(descriptor);
    if (!regular)
      throw UserError(path + ": not a regular file, expected Megatron token files, .bin and .idx");
    if (size == 0) return;
    if (memory == MAP_FAILED) throw RunError(path + ": cannot be mapped (" + std::strerror(errno) + ")");
    bytes = static_cast<const char*>(memory);
  }
  ~MappedFile() {
    if (bytes) ::munmap(const_cast<char*>(bytes), size);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string path;
  int64_t size = 0;
  const char* bytes = nullptr;
};

IndexedDataset::IndexedDataset(const std::string& prefix) : prefix_(prefix) {
  if (prefix_.ends_with(".bin") || prefix_.ends_with(".idx")) prefix_.resize(prefix_.size() - 4);
  index_ = std::make_unique<MappedFile>(prefix_ + ".idx");
  data_ = std::make_unique<MappedFile>(prefix_ + ".bin");
  check_index();
}

IndexedDataset::~IndexedDataset() = default;

int64_t IndexedDataset::length(int64_t sequence) const {
  return load<int32_t>(index_->bytes + kHeader + 4 * sequence);
}

int64_t IndexedDataset::pointer(int64_t sequence) const {
  return load<int64_t>(index_->bytes + kHeader + 4 * sequences_ + 8 * sequence);
}

int64_t IndexedDataset::document_index(int64_t entry) const {
  return load<int64_t>(index_->bytes + kHeader + 12 * sequences_ + 8 * entry);
}

void IndexedDataset::check_index() {
  const char* const head = index_->bytes;
  const auto fail = [&](const std::string& what) { throw UserError(index_->path + ": " + what); };
  if (index_->size < kHeader) fail(expected("size in bytes", index_->size, kHeader) + " or more");
  if (std::string_view(head, kMagic.size()) != kMagic)
    fail("does not begin with MMIDIDX, expected a Megatron index");
  if (const auto version = load<int64_t>(head + 9); version != 1)
    fail(expected("byte 9: version", version, 1));
  const auto code = load<uint8_t>(head + 17);
  if (code < 1 || code > 8) fail(expected("byte 17: type code", code, 1) + " to 5 or 8");
  if (code == 6 || code == 7)
    fail("byte 17: type code " + std::to_string(code) + " (floats), expected integers: 1 to 5 or 8");
  type_ = static_cast<TokenType>(code);

  const auto sequences = load<uint64_t>(head + 18), entries = load<uint64_t>(head + 26);
  const auto room = static_cast<uint64_t>(index_->size);
  if (sequences > room || entries > room || entries == 0) {
    fail("byte 18: " + std::to_string(sequences) + " sequences and " + std::to_string(entries) +
         " document indices, expected counts that fit the file's " + std::to_string(index_->size) + " bytes");
  }
  sequences_ = static_cast<int64_t>(sequences);
  documents_ = static_cast<int64_t>(entries) - 1;
  const int64_t plain = kHeader + 12 * sequences_ + 8 * (documents_ + 1);
  if (index_->size != plain && index_->size != plain + sequences_) {
    fail(expected("size in bytes", index_->size, plain) + " for " + std::to_string(sequences_) +
         " sequences in " + std::to_string(documents_) + " documents");
  }
  const int64_t width = token_bytes(type_);
  int64_t end = 0;
  for (int64_t s = 0; s < sequences_; ++s) {
    if (length(s) < 0)
      fail(expected("sequence " + std::to_string(s) + ": length", length(s), 0) + " or more");
    if (pointer(s) != end) {
      fail(expected("sequence " + std::to_string(s) + ": byte pointer", pointer(s), end) +
           ", the end of the previous sequence");
    }
    end += length(s) * width;
  }
  for (int64_t d = 0; d <= documents_; ++d) {
    const int64_t found = document_index(d), before = d > 0 ? document_index(d - 1) : 0;
    if ((d == 0 && found != 0) || found < before || found > sequences_) {
      fail(expected("document index " + std::to_string(d) + ":", found, before) +
           (d == 0 ? "" : " to " + std::to_string(sequences_)));
    }
  }
  if (document_index(documents_) != sequences_) {
    fail(expected("last document index:", document_index(documents_), sequences_) +
         ", the number of sequences");
  }
  if (data_->size != end) {
    throw UserError(data_->path + ": " + expected("size in bytes", data_->size, end) + " by " + index_->path);
  }
  tokens_ = end / width;
}

int64_t IndexedDataset::document_begin(int64_t document) const {
  const int64_t sequence = document_index(document);
  return sequence == sequences_ ? tokens_ : pointer(sequence) / token_bytes(type_);
}

int64_t IndexedDataset::document_at(int64_t token) const {
  int64_t low = 0, high = documents_;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (document_begin(middle) <= token ? low : high) = middle;
  }
  return low;
}

void IndexedDataset::copy(int64_t begin, int64_t count, int64_t* out) const {
  with_type(type_, [&]<typename T>(T) {
    const char* from = data_->bytes + begin * static_cast<int64_t>(sizeof(T));
    // NOLINTNEXTLINE(bugprone-signed-char-misuse): ids of type int8 are signed
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<int64_t>(load<T>(from + i * sizeof(T)));
  });
}

void IndexedDataset::read(int64_t begin, int64_t count, int64_t* out) const {
  copy(begin, count, out);
  if (vocab_size_ == 0) return;
  const auto* const bad = find_invalid(out, out + count, vocab_size_);
  if (bad != out + count) reject(begin + (bad - out), vocab_size_);
}

void IndexedDataset::reject(int64_t token, int64_t vocab_size) const {
  const int64_t document = document_at(token);
  int64_t id;
  copy(token, 1, &id);
  throw UserError(data_->path + ": document " + std::to_string(document) + ", token " +
                  std::to_string(token - document_begin(document)) + ": id " + std::to_string(id) +
                  ", expected 0 to " + std::to_string(vocab_size - 1) + " (a vocabulary of " +
                  std::to_string(vocab_size) + ")");
}

void IndexedDataset::check_tokens(int64_t vocab_size) const {
  constexpr int64_t kBlock = 1 << 22;
  std::atomic<int64_t> next{0}, first_bad{tokens_};
  const auto scan = [&] {
    std::vector<int64_t> block(std::min(kBlock, tokens_));
    for (int64_t begin; (begin = next.fetch_add(kBlock)) < first_bad;) {
      const int64_t count = std::min(kBlock, tokens_ - begin);
      copy(begin, count, block.data());
      const auto* const end = block.data() + count;
      const auto* const bad = find_invalid(block.data(), end, vocab_size);
      const int64_t at = begin + (bad - block.data());
      if (bad == end) continue;
      for (int64_t seen = first_bad; at < seen && !first_bad.compare_exchange_weak(seen, at);) {
      }
    }
  };
  std::vector<std::thread> threads;
  for (int64_t more = available_cores() - 1; more > 0; --more) threads.emplace_back(scan);
  scan();
  for (auto& thread : threads) thread.join();
  if (first_bad < tokens_) reject(first_bad, vocab_size);
}

}  // namespace hero
