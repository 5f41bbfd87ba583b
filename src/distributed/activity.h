#pragma once
// What this process is doing, for heartbeats and for the error message of a run that fails.
#include <cstdint>
#include <exception>
#include <functional>
#include <string>

namespace hero {

struct Activity {
  int64_t step = 0;
  std::string operation;       ///< collective in progress; empty: computing
  std::string last_operation;  ///< previous collective
  double since = 0;            ///< when this activity began, seconds on std::chrono::steady_clock
};

/// Thread-safe.
Activity current_activity();
void set_current_step(int64_t step);

/// Marks this thread as waiting for `operation` within a scope.
class ScopedWait {
 public:
  explicit ScopedWait(const std::string& operation);
  ~ScopedWait();
  ScopedWait(const ScopedWait&) = delete;

 private:
  int64_t id_;  ///< unique within the process
};

/// Total seconds that this thread has spent in ScopedWait.
double seconds_waited();

/// Error message for a failed operation: `failure` plus the missing ranks, if known. May take some seconds.
/// World sets the function.
void set_diagnosis(std::function<std::string(const std::string& failure)> diagnosis);
std::string diagnosis(const std::string& failure);

/// The message on one line, without a stack trace.
std::string one_line(const std::exception& e);

}  // namespace hero
