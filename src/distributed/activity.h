#pragma once
// What this process is doing, for the one line that says where a run stopped and for what others are told.
#include <cstdint>
#include <exception>
#include <functional>
#include <string>

namespace hero {

struct Activity {
  int64_t step = 0;
  std::string operation;  ///< the collective that is waited for; empty: computing
  std::string last;       ///< the one that was waited for last
  double since = 0;       ///< seconds on std::chrono::steady_clock when that began
};

/// Thread-safe.
Activity current_activity();
void set_current_step(int64_t step);

/// While it lives, this thread waits for `operation`.
class Waiting {
 public:
  explicit Waiting(const std::string& operation);
  ~Waiting();
  Waiting(const Waiting&) = delete;

 private:
  int64_t number_;  ///< of all waits of the process
};

/// Seconds that this thread has spent in Waiting so far.
double seconds_waited();

/// What to say of an operation that failed: `failure`, and which ranks are missing where that can be told. It
/// may take some seconds to find out. World sets how.
void set_diagnosis(std::function<std::string(const std::string& failure)> diagnosis);
std::string diagnosis(const std::string& failure);

/// The message in one line, without a stack trace.
std::string one_line(const std::exception& e);

}  // namespace hero
