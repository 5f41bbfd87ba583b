// Each case runs in a child process: a signal is recorded once per process.
#include "io/stop_signal.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

namespace hero {
namespace stop_signal_test {

[[noreturn]] void raise_and_exit(std::initializer_list<int> signals, bool announce = true) {
  catch_stop_signals(announce);
  for (const int number : signals) std::raise(number);
  std::_Exit(stop_signal());
}

TEST(StopSignal, RepetitionsWithinASecondAreIgnored) {
  const char* notice = "^saving; press Ctrl-C again to stop without saving\n$";
  EXPECT_EXIT(raise_and_exit({}), testing::ExitedWithCode(0), "^$");
  EXPECT_EXIT(raise_and_exit({SIGINT}), testing::ExitedWithCode(SIGINT), notice);
  EXPECT_EXIT(raise_and_exit({SIGINT, SIGINT, SIGINT}), testing::ExitedWithCode(SIGINT), notice);
  EXPECT_EXIT(raise_and_exit({SIGTERM, SIGTERM}), testing::ExitedWithCode(SIGTERM), notice);
}

TEST(StopSignal, BothSignalsAreRecorded) {
  EXPECT_EXIT(raise_and_exit({SIGINT, SIGTERM, SIGINT}, /*announce=*/false), testing::ExitedWithCode(SIGTERM),
              "^$");
}

TEST(StopSignal, ALaterOneTerminates) {
  const auto repeat_later = [] {
    catch_stop_signals();
    std::raise(SIGINT);
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    std::raise(SIGINT);
    std::_Exit(0);
  };
  EXPECT_EXIT(repeat_later(), testing::KilledBySignal(SIGINT), "saving");
}

}  // namespace stop_signal_test
}  // namespace hero
