// Append-only logs. Each record is one write(2), so a killed process truncates at most the last record.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string_view>

namespace hero {

class AppendFile {
 public:
  /// Opens the file for appending, and creates it if necessary. RunError with the system's error message.
  explicit AppendFile(std::filesystem::path path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// Appends one record in one write. RunError on failure (full disk); a partial record is removed.
  void append(std::string_view record);
  /// Truncates the file to `size` bytes.
  void truncate(uint64_t size);
  /// Atomically replaces this file with `file`, syncs the folder, and appends to the new file.
  void replace_with(const std::filesystem::path& file);

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
