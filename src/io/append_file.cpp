#include "io/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "io/durable_file.h"
#include "io/error.h"

namespace hero {

AppendFile::AppendFile(std::filesystem::path path) : path_(std::move(path)) { open(); }

AppendFile::~AppendFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void AppendFile::open() {
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  struct stat status{};
  if (descriptor_ < 0 || fstat(descriptor_, &status) != 0) fail(errno);
  size_ = static_cast<uint64_t>(status.st_size);
}

void AppendFile::fail(int reason) const {
  throw RunError("cannot write " + path_.string() + ": " + std::strerror(reason));
}

void AppendFile::append(std::string_view record) {
  ssize_t written = -1;
  do {
    written = write(descriptor_, record.data(), record.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(record.size())) {
    size_ += record.size();
    return;
  }
  const int reason = written < 0 ? errno : ENOSPC;
  if (written > 0) truncate(size_);
  fail(reason);
}

void AppendFile::truncate(uint64_t size) {
  if (ftruncate(descriptor_, static_cast<off_t>(size)) != 0) fail(errno);
  size_ = size;
}

void AppendFile::replace_with(const std::filesystem::path& file) {
  rename_durable(file, path_);
  close(std::exchange(descriptor_, -1));
  open();
}

}  // namespace hero
