// Progress line on stderr:
//   step 120/2000  loss 5.4321  4,012 tok/s  left 12:03
// Rewritten in place on a terminal; otherwise a full line every few seconds or items, and the last one.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <iosfwd>
#include <string>

namespace hero {

struct ProgressOptions {
  int64_t start = 0;         // items done before this process started (resume), excluded from the throughput
  std::string rate_unit;     // "tok"; empty: the label
  double rate_per_item = 1;  // tokens per step
  double line_seconds = 10;  // between lines without a terminal
  int64_t line_items = 0;    // without a terminal: lines after the first item and every this many instead
  size_t line_width = 0;     // of lines without a terminal: the last parts are dropped; 0: no limit
  double window_seconds = 30;   // averaging window of throughput and time left
  std::ostream* out = nullptr;  // default: stderr
  int columns = -1;             // terminal width; 0: no terminal; -1: detect
  std::function<double()> now;  // seconds; default: steady clock
};

class StepProgress {
 public:
  /// `label`: name of the items ("step"). `total`: number of items; 0: unknown, no time left is shown.
  StepProgress(std::string label, int64_t total, ProgressOptions options = {});
  ~StepProgress();
  StepProgress(const StepProgress&) = delete;
  StepProgress& operator=(const StepProgress&) = delete;

  /// `done`: total number of finished items. `note`: shown after the count ("loss 5.4321"); `detail`: at the
  /// end. Parts are separated by two spaces; those that do not fit in a line are dropped, the last ones
  /// first. Cheap to call.
  void update(int64_t done, const std::string& note = "", const std::string& detail = "");
  /// Ends a line that is rewritten in place, so that other output starts on a new one.
  void end_line();
  /// Writes the last state, if not yet shown, and ends the line.
  void finish();

 private:
  struct Sample {
    double time;
    int64_t done;
  };

  bool due(double time) const;
  std::string line() const;
  void show();

  std::string label_;
  int64_t total_;
  ProgressOptions options_;
  std::deque<Sample> samples_;
  std::string note_, detail_;
  double last_shown_;
  bool any_shown_ = false;
  bool pending_ = false;    // the last update is not yet shown
  bool open_line_ = false;  // the current line has no newline yet
};

/// 1234567 -> "1,234,567".
std::string format_with_commas(int64_t number);

/// Seconds as m:ss or h:mm:ss.
std::string format_duration(double seconds);

}  // namespace hero
