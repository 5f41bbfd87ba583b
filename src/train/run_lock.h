#pragma once
#include <filesystem>
#include <utility>

namespace hero {

/// Exclusive lock on a run folder. UserError if another process holds it.
class RunLock {
 public:
  RunLock() = default;
  explicit RunLock(const std::filesystem::path& run);
  RunLock(RunLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  RunLock& operator=(RunLock&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~RunLock();

 private:
  int descriptor_ = -1;
};

}  // namespace hero
