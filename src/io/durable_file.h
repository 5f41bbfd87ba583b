// Crash-safe file writes: after a call returns, the data is synced to disk.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace hero {

/// A new file (an existing one is truncated) that is removed unless commit() succeeds. Every failure is a
/// RunError `cannot write PATH: <system error>`.
class DurableFile {
 public:
  /// `offset`: writes at this position of a file shared with other writers; its contents are kept.
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

/// Writes `text` to a file and commits it.
void write_durable(const std::filesystem::path& path, std::string_view text);

/// Makes directory entries durable (fsync of the folder). RunError on failure.
void sync_folder(const std::filesystem::path& folder);

/// `path`, or if it exists the first of path-2, path-3 ... that does not.
std::filesystem::path unused_path(const std::filesystem::path& path);

/// Renames atomically, replaces an existing file, and syncs the folder of `to`. RunError on failure.
void rename_durable(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace hero
