// System clock that jumps by up to twelve hours in either direction, ten times per second, if
// HERO_FAULT_CLOCK is set (a seed). The monotonic clock is unchanged, as when an administrator or NTP sets
// the time.
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <ctime>

namespace {

timespec real_time(clockid_t clock) {
  timespec now{};
  syscall(SYS_clock_gettime, clock, &now);
  return now;
}

// Seconds that the system clock is off.
int64_t jump() {
  static const char* const seed = std::getenv("HERO_FAULT_CLOCK");
  if (!seed) return 0;
  const timespec monotonic = real_time(CLOCK_MONOTONIC);
  uint64_t bits = std::strtoull(seed, nullptr, 10) + static_cast<uint64_t>(monotonic.tv_sec) * 10 +
                  static_cast<uint64_t>(monotonic.tv_nsec) / 100'000'000;
  bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9;
  bits = (bits ^ bits >> 27) * 0x94D049BB133111EB;
  return static_cast<int64_t>((bits ^ bits >> 31) % 86'400) - 43'200;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const long result = syscall(SYS_clock_gettime, clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += jump();
  return static_cast<int>(result);
}

extern "C" __attribute__((visibility("default"))) int gettimeofday(timeval* now, void*) noexcept {
  const timespec real = real_time(CLOCK_REALTIME);
  *now = {.tv_sec = real.tv_sec + jump(), .tv_usec = real.tv_nsec / 1000};
  return 0;
}

extern "C" __attribute__((visibility("default"))) time_t time(time_t* result) noexcept {
  const time_t now = real_time(CLOCK_REALTIME).tv_sec + jump();
  if (result) *result = now;
  return now;
}
