#include "train/status.h"

#include <gtest/gtest.h>

namespace hero {
namespace status_test {

TEST(Status, LossAndValidationLoss) {
  const StepRecord step{.loss = 5.43214};
  EXPECT_EQ(status_note(step), "loss 5.4321");
  EXPECT_EQ(status_note(step, 5.5), "loss 5.4321  valid 5.5000");
}

TEST(Status, ShareOfTheBusiestExpert) {
  EXPECT_EQ(status_detail({.max_expert_share = 0.0625}), "expert 6.2%");
  EXPECT_EQ(status_detail({.max_expert_share = 0.414}), "expert 41%");
  EXPECT_EQ(status_detail({.max_expert_share = 1}), "expert 100%");
}

}  // namespace status_test
}  // namespace hero
