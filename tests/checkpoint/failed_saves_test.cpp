// Saves with failing system calls or values that are not finite, and which checkpoints they keep.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "checkpoint/example_run.h"
#include "checkpoint/failing_calls.h"

namespace hero {
namespace failed_saves_test {

namespace fs = std::filesystem;
using test::error_of;
using test::ExampleContents;
using test::FailingCalls;
using test::names_in;
using test::TemporaryFolder;
using test::verify_checkpoint;
using Names = std::vector<std::string>;

void save(CheckpointWriter& writer, int64_t step, bool wait = true) {
  ExampleContents contents(step);
  writer.save(step, *contents, wait);
}

TEST(FailedSaves, KeepsTheNewestVerifiedCheckpoint) {
  const TemporaryFolder run;
  CheckpointWriter writer({}, run.path(), /*keep=*/1);
  const fs::path folder = run / "checkpoints";
  save(writer, 10);
  save(writer, 20);
  EXPECT_EQ(names_in(folder), (Names{"step-00000010", "step-00000020"})) << "none is verified";
  writer.mark_verified(15);
  save(writer, 30);
  EXPECT_EQ(names_in(folder), (Names{"step-00000010", "step-00000020", "step-00000030"}));
  writer.mark_verified(20);
  save(writer, 40);
  EXPECT_EQ(names_in(folder), (Names{"step-00000020", "step-00000030", "step-00000040"}));
  writer.mark_verified(40);
  save(writer, 50);
  EXPECT_EQ(names_in(folder), (Names{"step-00000040", "step-00000050"}));
}

TEST(FailedSaves, ValuesThatAreNotFinite) {
  const TemporaryFolder run;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float value : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (const bool moment : {false, true}) {
      CheckpointWriter writer({}, run.path(), 0);
      ExampleContents contents(1);
      auto values = at::ones({9});
      values[4] = value;
      (moment ? (*contents).optimizer : (*contents).model).emplace_back("odd", values);
      EXPECT_EQ(error_of<SaveError>([&] { writer.save(1, *contents, true); }),
                "cannot save checkpoint " + checkpoint_folder(run.path(), 1).string() +
                    ": tensor odd has values that are not finite; earlier checkpoints are intact");
    }
  }
  EXPECT_TRUE(fs::is_empty(run / "checkpoints"));
}

TEST(FailedSaves, EveryFailingFsyncKeepsThePreviousCheckpoint) {
  const TemporaryFolder run;
  CheckpointWriter writer({}, run.path(), /*keep=*/1);
  save(writer, 1);
  writer.mark_verified(1);
  int failed = 0;
  for (int64_t step = 2; failed == step - 2; ++step) {
    const FailingCalls failing(FailingCalls::Name::kFsync, static_cast<int>(step) - 1);
    try {
      save(writer, step, /*wait=*/step % 2 == 0);
      writer.finish();
    } catch (const SaveError& error) {
      ++failed;
      EXPECT_NE(std::string(error.what()).find("Input/output error"), std::string::npos) << error.what();
      EXPECT_EQ(writer.failures(), failed);
      EXPECT_NO_THROW(verify_checkpoint(checkpoint_folder(run.path(), 1)));
    }
  }
  EXPECT_GT(failed, 5);
  EXPECT_EQ(writer.failures(), 0);
}

TEST(FailedSaves, FailedDeletionIsRepeatedWithTheNextSave) {
  const TemporaryFolder run;
  CheckpointWriter writer({}, run.path(), /*keep=*/1);
  save(writer, 1);
  save(writer, 2);
  writer.mark_verified(2);
  {
    const FailingCalls failing(FailingCalls::Name::kRename, 1, /*count=*/100);
    const std::string message = error_of<SaveError>([&] { save(writer, 3); });
    EXPECT_NE(message.find("step-00000003 is saved, but old ones may remain: "), std::string::npos)
        << message;
  }
  EXPECT_EQ(names_in(run / "checkpoints"), (Names{"step-00000001", "step-00000002", "step-00000003"}));
  writer.mark_verified(3);
  save(writer, 4);
  EXPECT_EQ(names_in(run / "checkpoints"), (Names{"step-00000003", "step-00000004"}));
}

TEST(FailedSaves, DamagedCheckpointsAreRenamed) {
  const TemporaryFolder run;
  EXPECT_TRUE(newest_intact_checkpoint(run.path()).folder.empty());
  for (const int64_t step : {1, 2, 3}) test::save_example(run.path(), step, 0);
  const fs::path folder = run / "checkpoints";
  EXPECT_EQ(newest_intact_checkpoint(run.path()).folder, folder / "step-00000003");
  for (const char* name : {"step-00000002", "step-00000003"})
    test::write_bytes(folder / name / "state.json", "");
  fs::create_directory(folder / "step-00000003.damaged");
  const auto before = names_in(folder);
  const auto found = newest_intact_checkpoint(run.path());
  EXPECT_EQ(found.folder, folder / "step-00000001");
  EXPECT_EQ(names_in(folder), before);
  testing::internal::CaptureStderr();
  set_aside_damaged(found);
  const std::string warnings = testing::internal::GetCapturedStderr();
  for (const char* name : {"step-00000002", "step-00000003"}) {
    const std::string damage = "warning: " + (folder / name / "state.json").string() + ": truncated: found 0";
    EXPECT_NE(warnings.find(damage), std::string::npos) << warnings;
  }
  clean_leftovers(run.path());
  EXPECT_EQ(names_in(folder), (Names{"step-00000001", "step-00000002.damaged", "step-00000003.damaged",
                                     "step-00000003.damaged-2"}));
  test::write_bytes(folder / "step-00000001" / "state.json", "");
  EXPECT_NE(
      error_of<UserError>([&] { newest_intact_checkpoint(run.path()); }).find("no checkpoint of the run"),
      std::string::npos);
  EXPECT_TRUE(fs::exists(folder / "step-00000001"));
}

}  // namespace failed_saves_test
}  // namespace hero
