#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace hero {

/// Progress over a known number of bytes, on stderr: a progress bar on a terminal (percent, MB/s, time left),
/// otherwise one line every ten seconds. Not thread-safe.
class Progress {
 public:
  Progress(std::string what, int64_t total_bytes);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(int64_t done_bytes);

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_;
  int64_t total_;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point start_;
  Clock::time_point last_;
};

}  // namespace hero
