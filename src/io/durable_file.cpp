#include "io/durable_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "io/error.h"

namespace hero {
namespace {

constexpr size_t kMaxWrite = 1 << 30;  // Linux limits a write to 2 GiB - 4 KiB

// fsync of devices and pipes fails with EINVAL, which is harmless.
bool sync_descriptor(int descriptor) { return fsync(descriptor) == 0 || errno == EINVAL || errno == ENOTSUP; }

}  // namespace

DurableFile::DurableFile(std::filesystem::path path, std::optional<uint64_t> offset)
    : path_(std::move(path)) {
  descriptor_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (offset ? 0 : O_TRUNC), 0666);
  if (descriptor_ < 0 || (offset && lseek(descriptor_, static_cast<off_t>(*offset), SEEK_SET) < 0))
    fail(std::strerror(errno));
}

DurableFile::~DurableFile() {
  if (descriptor_ < 0) return;
  struct stat status{};
  const bool regular = fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode);
  close(descriptor_);
  if (regular) unlink(path_.c_str());
}

void DurableFile::fail(const std::string& reason) {
  throw RunError("cannot write " + path_.string() + ": " + reason);
}

void DurableFile::write(const void* data, size_t size) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::write(descriptor_, next, std::min(size, kMaxWrite));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(std::strerror(errno));
    next += written;
    size -= static_cast<size_t>(written);
  }
}

void DurableFile::commit() {
  if (!sync_descriptor(descriptor_)) fail(std::strerror(errno));
  if (close(std::exchange(descriptor_, -1)) != 0) fail(std::strerror(errno));
}

void write_durable(const std::filesystem::path& path, std::string_view text) {
  DurableFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

void sync_folder(const std::filesystem::path& folder) {
  const std::string name = folder.empty() ? "." : folder.string();
  const int descriptor = open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = descriptor >= 0 && sync_descriptor(descriptor);
  const int reason = errno;
  if (descriptor >= 0) close(descriptor);
  if (!synced) throw RunError("cannot sync folder " + name + ": " + std::strerror(reason));
}

std::filesystem::path unused_path(const std::filesystem::path& path) {
  std::filesystem::path free = path;
  for (int i = 2; std::filesystem::exists(free); ++i) free = path.string() + "-" + std::to_string(i);
  return free;
}

void rename_durable(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    throw RunError("cannot rename " + from.string() + " to " + to.filename().string() + ": " +
                   std::strerror(errno));
  }
  sync_folder(to.parent_path());
}

}  // namespace hero
