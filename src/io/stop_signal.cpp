#include "io/stop_signal.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <string_view>

namespace hero {
namespace {

constexpr int64_t kRepetition = 1'000'000'000;  // nanoseconds

volatile std::sig_atomic_t received = 0;
std::atomic<int64_t> interrupted_at = 0, terminated_at = 0;  // 0: not yet
static_assert(std::atomic<int64_t>::is_always_lock_free);
std::string_view notice;

int64_t steady_nanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Calls only async-signal-safe functions.
void record_signal(int number) {
  const int reason = errno;
  const int64_t now = steady_nanoseconds();
  int64_t first = 0;
  if ((number == SIGINT ? interrupted_at : terminated_at).compare_exchange_strong(first, now)) {
    if (received == 0 && write(STDERR_FILENO, notice.data(), notice.size()) < 0) errno = 0;
    received = number;
  } else if (now - first > kRepetition) {
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
  errno = reason;
}

}  // namespace

void catch_stop_signals(bool announce) {
  constexpr std::string_view kNotice = "\nsaving; press Ctrl-C again to stop without saving\n";
  // In a terminal the cursor is at the end of the progress line.
  if (announce) notice = kNotice.substr(isatty(STDERR_FILENO) ? 0 : 1);
  std::signal(SIGINT, record_signal);
  std::signal(SIGTERM, record_signal);
}

int stop_signal() { return received; }

}  // namespace hero
