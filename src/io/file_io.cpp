#include "io/file_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "io/error.h"

namespace hero {

namespace fs = std::filesystem;

std::string read_file(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) throw UserError(path + ": no such file");
  if (fs::is_directory(path, ignored)) throw UserError(path + ": found a folder, expected a file");
  std::ifstream in(path, std::ios::binary);
  if (!in) throw UserError(path + ": cannot be opened (" + std::strerror(errno) + ")");
  std::string bytes;
  const auto size = fs::file_size(path, ignored);
  if (!ignored) bytes.reserve(size);
  char buffer[1 << 16];
  while (in.read(buffer, sizeof(buffer)), in.gcount() > 0) bytes.append(buffer, in.gcount());
  if (in.bad()) throw RunError(path + ": reading failed after " + std::to_string(bytes.size()) + " bytes");
  return bytes;
}

void write_file(const std::string& path, std::string_view bytes) {
  const std::string temporary = path + ".tmp";
  const auto fail = [&](const char* what) {
    const std::string reason = std::strerror(errno);
    std::remove(temporary.c_str());
    throw RunError(path + ": " + what + " failed (" + reason + ")");
  };
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) fail("creating the file");
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      ::close(file);
      fail("writing");
    }
    bytes.remove_prefix(written);
  }
  if (::fsync(file) != 0 || ::close(file) != 0) fail("flushing");
  if (std::rename(temporary.c_str(), path.c_str()) != 0) fail("renaming");
}

void make_parent_folder(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  if (parent.empty()) return;
  std::error_code error;
  fs::create_directories(parent, error);
  if (!fs::is_directory(parent)) {
    throw UserError(path + ": cannot create folder " + parent.string() + " (" + error.message() + ")");
  }
}

}  // namespace hero
