// The progress line of long work on stderr:
//   step 120/2000  loss 5.4321  4,012 tok/s  left 12:03
// rewritten in place on a terminal; elsewhere a full line every few seconds, and the last.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <iosfwd>
#include <string>

namespace hero {

struct ProgressOptions {
  int64_t start = 0;      // done before this process began (resume); it counts neither in rate nor time left
  std::string rate_unit;  // "tok"; empty: the label itself
  double rate_per_item = 1;     // tokens a step
  double line_seconds = 10;     // between full lines where there is no terminal
  double window_seconds = 30;   // rate and time left come from the last so many seconds
  std::ostream* out = nullptr;  // default: stderr
  int columns = -1;             // of the terminal; 0: no terminal; -1: ask the system
  std::function<double()> now;  // seconds; default: a steady clock
};

class StepProgress {
 public:
  /// `label` names what is counted ("step"), `total` of it being all (0: unknown, nothing is said of the time
  /// left).
  StepProgress(std::string label, int64_t total, ProgressOptions options = {});
  ~StepProgress();
  StepProgress(const StepProgress&) = delete;
  StepProgress& operator=(const StepProgress&) = delete;

  /// `done` items in all are done; `note` is shown after the count ("loss 5.4321"). Cheap to call often.
  void update(int64_t done, const std::string& note = "");
  /// Writes the last state, if not shown yet, and ends the line.
  void finish();

 private:
  struct Sample {
    double time;
    int64_t done;
  };

  std::string line() const;
  void show();

  std::string label_;
  int64_t total_;
  ProgressOptions options_;
  std::deque<Sample> samples_;
  std::string note_;
  double last_shown_;
  bool pending_ = false;    // the last update has not been shown
  bool open_line_ = false;  // the cursor stands behind a line without an end
};

/// 1234567 -> "1,234,567".
std::string with_thousands(int64_t number);

/// Seconds as m:ss or h:mm:ss.
std::string clock_time(double seconds);

}  // namespace hero
