// Calls of the C library that fail, selected by environment variables:
//   HERO_FAULT_CALL    open, write, fsync, rename, mkdir, truncate, remove or close
//   HERO_FAULT_FILES   part of the path of files that count, such as "run/checkpoints/"
//   HERO_FAULT_NUMBER  the call that fails, from 1
//   HERO_FAULT_ACTION  eio: the call fails; kill: half of a write is done and SIGKILL ends the process
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool selected(std::string_view call, std::string_view path) {
  static const std::string_view wanted = variable("HERO_FAULT_CALL"), files = variable("HERO_FAULT_FILES");
  static const int number = std::atoi(std::string(variable("HERO_FAULT_NUMBER")).c_str());
  static std::atomic<int> calls = 0;
  if (call != wanted || path.find(files) == path.npos || ++calls != number) return false;
  const std::string line = "fault: " + std::string(call) + " " + std::string(path) + "\n";
  syscall(SYS_write, STDERR_FILENO, line.data(), line.size());
  return true;
}

bool fails(std::string_view call, std::string_view path) {
  if (!selected(call, path)) return false;
  if (variable("HERO_FAULT_ACTION") == "kill") kill(getpid(), SIGKILL);
  errno = EIO;
  return true;
}

std::string path_of(int descriptor) {
  char path[4096];
  const ssize_t size = readlink(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), path, sizeof path);
  return size < 0 ? "" : std::string(path, static_cast<size_t>(size));
}

int open_file(int folder, const char* path, int flags, mode_t mode) {
  if ((flags & (O_WRONLY | O_RDWR)) && fails("open", path)) return -1;
  return static_cast<int>(syscall(SYS_openat, folder, path, flags, mode));
}

}  // namespace

#define INTERPOSED extern "C" __attribute__((visibility("default")))

INTERPOSED int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return open_file(AT_FDCWD, path, flags, mode);
}

INTERPOSED int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return open_file(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}

INTERPOSED ssize_t write(int descriptor, const void* data, size_t size) {
  if (descriptor > STDERR_FILENO && selected("write", path_of(descriptor))) {
    if (variable("HERO_FAULT_ACTION") == "kill") {
      syscall(SYS_write, descriptor, data, size / 2);
      kill(getpid(), SIGKILL);
    }
    errno = EIO;
    return -1;
  }
  return syscall(SYS_write, descriptor, data, size);
}

INTERPOSED int close(int descriptor) {
  const bool failing = descriptor > STDERR_FILENO && fails("close", path_of(descriptor));
  const long result = syscall(SYS_close, descriptor);
  if (failing) errno = EIO;
  return failing ? -1 : static_cast<int>(result);
}

INTERPOSED int fsync(int descriptor) {
  return fails("fsync", path_of(descriptor)) ? -1 : static_cast<int>(syscall(SYS_fsync, descriptor));
}

INTERPOSED int ftruncate(int descriptor, off_t size) noexcept {
  return fails("truncate", path_of(descriptor)) ? -1
                                                : static_cast<int>(syscall(SYS_ftruncate, descriptor, size));
}

INTERPOSED int renameat2(int from_folder, const char* from, int to_folder, const char* to,
                         unsigned flags) noexcept {
  if (fails("rename", from)) return -1;
  return static_cast<int>(syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}

INTERPOSED int rename(const char* from, const char* to) noexcept {
  return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

INTERPOSED int mkdir(const char* path, mode_t mode) noexcept {
  return fails("mkdir", path) ? -1 : static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

INTERPOSED int unlinkat(int folder, const char* path, int flags) noexcept {
  const std::string whole = folder == AT_FDCWD ? path : path_of(folder) + "/" + path;
  return fails("remove", whole) ? -1 : static_cast<int>(syscall(SYS_unlinkat, folder, path, flags));
}

INTERPOSED int unlink(const char* path) noexcept { return unlinkat(AT_FDCWD, path, 0); }

INTERPOSED int remove(const char* path) noexcept {
  const int done = unlinkat(AT_FDCWD, path, 0);
  return done < 0 && errno == EISDIR ? unlinkat(AT_FDCWD, path, AT_REMOVEDIR) : done;
}
