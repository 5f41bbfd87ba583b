#include "io/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace hero {

Progress::Progress(std::string what, int64_t total_bytes)
    : what_(std::move(what)),
      total_(total_bytes),
      terminal_(::isatty(STDERR_FILENO) != 0),
      start_(Clock::now()),
      last_(start_) {}

Progress::~Progress() {
  if (drawn_) std::fputs("\r\033[K", stderr);
}

void Progress::update(int64_t done_bytes) {
  const auto now = Clock::now();
  if (now - last_ < (terminal_ ? std::chrono::milliseconds(200) : std::chrono::milliseconds(10000))) return;
  last_ = now;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double part = total_ > 0 ? std::clamp(static_cast<double>(done_bytes) / total_, 0.0, 1.0) : 0.0;
  const double rate = done_bytes / seconds / 1e6;
  const auto left = part > 0 ? static_cast<long>(seconds / part * (1 - part)) : 0;
  char text[96];
  std::snprintf(text, sizeof(text), "%5.1f%%  %.1f MB/s  %ld:%02ld left", 100 * part, rate, left / 60,
                left % 60);
  if (!terminal_) {
    std::fprintf(stderr, "%s %s\n", what_.c_str(), text);
    return;
  }
  const int filled = static_cast<int>(30 * part);
  const std::string bar = std::string(filled, '#') + std::string(30 - filled, '.');
  std::fprintf(stderr, "\r%s [%s] %s\033[K", what_.c_str(), bar.c_str(), text);
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace hero
