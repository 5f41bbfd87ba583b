// What a process says it is doing.
#include "distributed/activity.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "distributed/sign.h"

namespace hero {
namespace {

TEST(Activity, is_the_oldest_wait_then_computing_after_the_last) {
  const double before = seconds_waited();
  set_current_step(41);
  {
    const Waiting first("all_reduce");
    const Waiting second("send");
    EXPECT_EQ(current_activity().operation, "all_reduce");
    EXPECT_EQ(place(own_sign(1, false)), "at step 41 in all_reduce");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_GE(seconds_waited() - before, 0.004);  // both waits
  EXPECT_EQ(current_activity().step, 41);
  EXPECT_EQ(current_activity().operation, "");
  EXPECT_EQ(place(own_sign(1, false)), "at step 41, computing after all_reduce");
}

TEST(Activity, a_failure_is_explained_where_somebody_can) {
  EXPECT_EQ(diagnosis("all_reduce failed"), "all_reduce failed");
  set_diagnosis([](const std::string& failure) { return failure + "; rank 3 is silent"; });
  EXPECT_EQ(diagnosis("all_reduce failed"), "all_reduce failed; rank 3 is silent");
  set_diagnosis(nullptr);
}

TEST(Sign, comes_back_from_its_text) {
  const Sign sign = {7, 41, "send to rank 2 over \"pipeline\" ranks", "all_reduce", "host a, pid 5", true};
  const Sign read = parse_sign(dump(sign));
  EXPECT_EQ(read.number, sign.number);
  EXPECT_EQ(read.ended, sign.ended);
  EXPECT_EQ(read.who, sign.who);
  EXPECT_EQ(place(read), "at step 41 in send to rank 2 over \"pipeline\" ranks");
}

TEST(Sign, seconds_are_rounded) {
  EXPECT_EQ(seconds(2), "2 s");
  EXPECT_EQ(seconds(1.234), "1.2 s");
  EXPECT_EQ(seconds(600), "600 s");
}

}  // namespace
}  // namespace hero
