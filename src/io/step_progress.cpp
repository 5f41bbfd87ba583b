#include "io/step_progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <utility>

namespace hero {
namespace {

constexpr double kRedrawSeconds = 0.1;

int terminal_columns() {
  if (!isatty(STDERR_FILENO)) return 0;
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Drops the last parts of a line that is too long; the first one stays.
std::string drop_parts(std::string text, size_t width) {
  while (text.size() > width) {
    const size_t end = text.rfind("  ");
    if (end == std::string::npos) break;
    text.resize(end);
  }
  return text;
}

std::string format_rate(double rate) {
  if (rate >= 100) return format_with_commas(std::llround(rate));
  char text[32];
  std::snprintf(text, sizeof text, rate >= 10 ? "%.1f" : "%.2f", rate);
  return text;
}

}  // namespace

std::string format_with_commas(int64_t number) {
  std::string text = std::to_string(number);
  const int first = number < 0 ? 1 : 0;
  for (int at = static_cast<int>(text.size()) - 3; at > first; at -= 3)
    text.insert(static_cast<size_t>(at), 1, ',');
  return text;
}

std::string format_duration(double seconds) {
  const long long whole = std::llround(seconds);
  char text[48];
  if (whole >= 3600) {
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
  } else {
    std::snprintf(text, sizeof text, "%lld:%02lld", whole / 60, whole % 60);
  }
  return text;
}

StepProgress::StepProgress(std::string label, int64_t total, ProgressOptions options)
    : label_(std::move(label)), total_(total), options_(std::move(options)) {
  if (!options_.out) options_.out = &std::cerr;
  if (!options_.now) options_.now = steady_seconds;
  if (options_.columns < 0) options_.columns = terminal_columns();
  if (options_.rate_unit.empty()) options_.rate_unit = label_;
  last_shown_ = options_.now();
  samples_.push_back({last_shown_, options_.start});
}

// After a failure, the error message starts on a new line.
StepProgress::~StepProgress() { end_line(); }

void StepProgress::update(int64_t done, const std::string& note, const std::string& detail) {
  const double time = options_.now();
  samples_.push_back({time, done});
  while (samples_.size() > 2 && time - samples_[1].time >= options_.window_seconds) samples_.pop_front();
  note_ = note;
  detail_ = detail;
  pending_ = true;
  if (due(time)) show();
}

bool StepProgress::due(double time) const {
  if (options_.columns > 0) return time - last_shown_ >= kRedrawSeconds;
  if (options_.line_items > 0) return !any_shown_ || samples_.back().done % options_.line_items == 0;
  return time - last_shown_ >= options_.line_seconds;
}

void StepProgress::end_line() {
  if (open_line_) *options_.out << "\n" << std::flush;
  open_line_ = false;
}

void StepProgress::finish() {
  if (pending_) show();
  end_line();
}

std::string StepProgress::line() const {
  const Sample &first = samples_.front(), &last = samples_.back();
  std::string text = label_ + " " + std::to_string(last.done);
  if (total_ > 0) text += "/" + std::to_string(total_);
  if (!note_.empty()) text += "  " + note_;
  if (last.time > first.time && last.done > first.done) {
    const double rate = static_cast<double>(last.done - first.done) / (last.time - first.time);
    text += "  " + format_rate(rate * options_.rate_per_item) + " " + options_.rate_unit + "/s";
    if (total_ > last.done)
      text += "  left " + format_duration(static_cast<double>(total_ - last.done) / rate);
  }
  if (!detail_.empty()) text += "  " + detail_;
  return text;
}

void StepProgress::show() {
  std::string text = line();
  any_shown_ = true;
  if (options_.columns > 0) {
    // The cursor needs the last column.
    const auto width = static_cast<size_t>(options_.columns - 1);
    text = "\r" + drop_parts(text, width).substr(0, width) + "\x1b[K";
    open_line_ = true;
  } else {
    if (options_.line_width > 0) text = drop_parts(text, options_.line_width);
    text += '\n';
  }
  *options_.out << text << std::flush;
  last_shown_ = samples_.back().time;
  pending_ = false;
}

}  // namespace hero
