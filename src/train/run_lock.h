#pragma once
#include <filesystem>
#include <utility>

namespace hero {

/// Exclusive lock on a run folder: flock of RUN/lock. On file systems without locks, with a warning, the file
/// RUN/lock.owner with host and process id; it is left behind if the process is killed, and replaced if the
/// process no longer exists on this host. UserError if another process holds the lock.
class RunLock {
 public:
  RunLock() = default;
  explicit RunLock(const std::filesystem::path& run);
  RunLock(RunLock&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)), owner_(std::exchange(other.owner_, {})) {}
  RunLock& operator=(RunLock&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    std::swap(owner_, other.owner_);
    return *this;
  }
  ~RunLock();

 private:
  int descriptor_ = -1;
  std::filesystem::path owner_;  ///< the file with host and process id; empty: none
};

}  // namespace hero
