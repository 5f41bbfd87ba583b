#pragma once
// The time limit of a wait for other ranks.
#include <chrono>
#include <cstdint>

namespace hero {

/// Starts again whenever the awaited ranks have hashed more bytes: hashing a large checkpoint may take longer
/// than parallel.timeout, while a rank that hangs hashes nothing.
class WaitLimit {
 public:
  using Clock = std::chrono::steady_clock;

  WaitLimit(double seconds, Clock::time_point now) : seconds_(seconds), since_(now) {}

  /// `bytes_hashed`: by the awaited ranks so far.
  bool exceeded(Clock::time_point now, uint64_t bytes_hashed) {
    if (bytes_hashed != bytes_hashed_) since_ = now;
    bytes_hashed_ = bytes_hashed;
    return std::chrono::duration<double>(now - since_).count() >= seconds_;
  }

 private:
  double seconds_;
  Clock::time_point since_;
  uint64_t bytes_hashed_ = 0;
};

}  // namespace hero
