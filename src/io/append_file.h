// Logs that only grow while a run goes on: one write(2) a record, so that a killed process tears at most the
// last.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string_view>

namespace hero {

class AppendFile {
 public:
  /// Opens for appending, creates if need be. RunError with the system's reason.
  explicit AppendFile(std::filesystem::path path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// One record, in one write. RunError if it does not fit (full disk); the file then ends before it.
  void append(std::string_view record);
  /// Cuts the file to its first `size` bytes.
  void truncate(uint64_t size);
  /// Puts a finished file in this one's place, atomically and synced, and goes on appending to it.
  void replace_by(const std::filesystem::path& file);

  uint64_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  void open();
  [[noreturn]] void fail(int reason) const;

  std::filesystem::path path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

}  // namespace hero
