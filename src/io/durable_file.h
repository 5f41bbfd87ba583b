// Files that are on the disk once the call returns: written through, fsynced, or not there at all.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace hero {

/// A new file (an old one is emptied) that counts only after commit(). Destroyed before that, it is removed
/// again. Every failure is a RunError `cannot write PATH: <the system's reason>`.
class DurableFile {
 public:
  /// `offset`: of a file that others write into too. What it holds stays, and bytes go there.
  explicit DurableFile(std::filesystem::path path, std::optional<uint64_t> offset = {});
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  /// Writes the next `size` bytes.
  void write(const void* data, size_t size);
  /// fsync and close. The file's name is durable only after sync_folder of its folder.
  void commit();

 private:
  [[noreturn]] void fail(const std::string& reason);

  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// Writes all of `text` as a file and commits it.
void write_durable(const std::filesystem::path& path, std::string_view text);

/// Makes the names in a folder durable (fsync of the folder). RunError on failure.
void sync_folder(const std::filesystem::path& folder);

/// Renames atomically, over an existing file too, and syncs the folder of `to`. RunError on failure.
void rename_durable(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace hero
