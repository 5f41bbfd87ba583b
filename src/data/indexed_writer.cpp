#include "data/indexed_writer.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "io/error.h"
#include "io/file_io.h"

namespace hero {

IndexedWriter::IndexedWriter(std::string prefix, TokenType type) : prefix_(std::move(prefix)), type_(type) {
  data_.reset(std::fopen((prefix_ + ".bin.tmp").c_str(), "wb"));
  if (!data_) throw RunError(prefix_ + ".bin.tmp: creating the file failed (" + std::strerror(errno) + ")");
}

IndexedWriter::~IndexedWriter() {
  if (data_) std::remove((prefix_ + ".bin.tmp").c_str());
}

void IndexedWriter::write(const void* bytes, std::size_t size) {
  if (size > 0 && std::fwrite(bytes, 1, size, data_.get()) != size) {
    throw RunError(prefix_ + ".bin.tmp: writing failed (" + std::strerror(errno) + ")");
  }
}

void IndexedWriter::add_document(std::span<const int32_t> ids) {
  if (ids.size() > static_cast<std::size_t>(std::numeric_limits<int32_t>::max())) {
    throw UserError(prefix_ + ".idx: document " + std::to_string(lengths_.size()) + " has " +
                    std::to_string(ids.size()) + " tokens, expected fewer than 2^31: split it");
  }
  if (type_ == TokenType::u16) {
    const std::vector<uint16_t> narrow(ids.begin(), ids.end());
    write(narrow.data(), narrow.size() * sizeof(uint16_t));
  } else {
    write(ids.data(), ids.size() * sizeof(int32_t));
  }
  lengths_.push_back(static_cast<int32_t>(ids.size()));
}

void IndexedWriter::finish() {
  const std::string data = prefix_ + ".bin", index = prefix_ + ".idx";
  if (std::fflush(data_.get()) != 0 || ::fsync(::fileno(data_.get())) != 0) {
    throw RunError(data + ".tmp: flushing failed (" + std::strerror(errno) + ")");
  }
  std::remove(index.c_str());  // never leave an old index with new tokens
  if (std::rename((data + ".tmp").c_str(), data.c_str()) != 0) {
    throw RunError(data + ": renaming failed (" + std::strerror(errno) + ")");
  }
  data_.reset();
  write_index();
}

void IndexedWriter::write_index() {
  std::string bytes("MMIDIDX\0\0", 9);
  const auto put = [&]<typename T>(T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
  };
  const auto count = static_cast<uint64_t>(lengths_.size());
  bytes.reserve(42 + 20 * count);
  put(uint64_t{1});
  put(static_cast<uint8_t>(type_));
  put(count);
  put(count + 1);
  for (const int32_t length : lengths_) put(length);
  int64_t at = 0;
  for (const int32_t length : lengths_) {
    put(at);
    at += length * token_bytes(type_);
  }
  for (uint64_t document = 0; document <= count; ++document) put(document);
  write_file(prefix_ + ".idx", bytes);
}

}  // namespace hero
