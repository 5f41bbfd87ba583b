// Activity tracking and heartbeat messages.
#include "distributed/activity.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "distributed/heartbeat_message.h"

namespace hero {
namespace activity_test {

TEST(Activity, reports_oldest_wait_then_computing_after_last_operation) {
  const double before = seconds_waited();
  set_current_step(41);
  {
    const ScopedWait first("all_reduce");
    const ScopedWait second("send");
    EXPECT_EQ(current_activity().operation, "all_reduce");
    EXPECT_EQ(describe(make_heartbeat_message(1, false)), "at step 41 in all_reduce");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_GE(seconds_waited() - before, 0.004);  // both waits
  EXPECT_EQ(current_activity().step, 41);
  EXPECT_EQ(current_activity().operation, "");
  EXPECT_EQ(describe(make_heartbeat_message(1, false)), "at step 41, computing after all_reduce");
}

TEST(Activity, failure_message_comes_from_diagnosis_function) {
  EXPECT_EQ(diagnosis("all_reduce failed"), "all_reduce failed");
  set_diagnosis([](const std::string& failure) { return failure + "; rank 3 is unresponsive"; });
  EXPECT_EQ(diagnosis("all_reduce failed"), "all_reduce failed; rank 3 is unresponsive");
  set_diagnosis(nullptr);
}

TEST(HeartbeatMessage, survives_dump_and_parse) {
  const HeartbeatMessage message = {
      7, 41, "send to rank 2 over \"pipeline\" ranks", "all_reduce", "host a, pid 5", true};
  const HeartbeatMessage read = parse_heartbeat_message(dump(message));
  EXPECT_EQ(read.sequence_number, message.sequence_number);
  EXPECT_EQ(read.ended, message.ended);
  EXPECT_EQ(read.process, message.process);
  EXPECT_EQ(describe(read), "at step 41 in send to rank 2 over \"pipeline\" ranks");
}

TEST(HeartbeatMessage, seconds_are_rounded) {
  EXPECT_EQ(format_seconds(2), "2 s");
  EXPECT_EQ(format_seconds(1.234), "1.2 s");
  EXPECT_EQ(format_seconds(600), "600 s");
}

}  // namespace activity_test
}  // namespace hero
