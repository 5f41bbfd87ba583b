#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "checkpoint/example_run.h"

namespace hero {
namespace checkpoint_long_test {

namespace fs = std::filesystem;

// Saves a step with `ranks` ranks: one synchronously, several asynchronously.
test::Save saver(int64_t ranks) {
  if (ranks == 1) return [](const fs::path& run, int64_t step) { test::save_example(run, step); };
  return [ranks](const fs::path& run, int64_t step) { test::save_by_ranks(run, step, ranks); };
}

class CheckpointKilledAtRandomLong : public testing::TestWithParam<int64_t> {};

TEST_P(CheckpointKilledAtRandomLong, SixtyTimes) {
  const test::TemporaryFolder run;
  int64_t last = 1;
  test::save_example(run.path(), last);
  std::mt19937 random(7);
  for (int i = 0; i < 60 && !HasFailure(); ++i) {
    const auto moment = std::uniform_int_distribution<int64_t>(0, 100000)(random);
    last = test::save_until_killed(run.path(), last + 1, moment, saver(GetParam()));
    test::expect_resumable(run.path(), last);
    last += 1;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, CheckpointKilledAtRandomLong, testing::Values(1, 3));

// Runs `save` in a child, stops each of its threads before and after every system call, and kills it at stop
// number `stops`. False if the child exits before.
bool killed_at(int stops, const std::function<void()>& save) {
  const pid_t child = fork();
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(9);
    raise(SIGSTOP);
    try {
      save();
    } catch (...) {
      _exit(3);
    }
    _exit(0);
  }
  int status = 0;
  pid_t thread = waitpid(child, &status, 0);
  ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL);
  const auto alive = [&] { return thread != child || WIFSTOPPED(status); };
  for (int i = 0; i < stops && alive(); ++i) {
    if (WIFSTOPPED(status)) ptrace(PTRACE_SYSCALL, thread, nullptr, nullptr);
    thread = waitpid(-1, &status, __WALL);
  }
  const bool killed = alive();
  if (killed) kill(child, SIGKILL);
  while (alive()) thread = waitpid(-1, &status, __WALL);
  if (!killed) {
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  return killed;
}

bool can_trace() {
  const pid_t child = fork();
  if (child == 0) _exit(ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0 ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

class CheckpointKilledLong : public testing::TestWithParam<std::tuple<int64_t, int64_t>> {};

TEST_P(CheckpointKilledLong, AroundEverySystemCall) {
  if (!can_trace()) GTEST_SKIP() << "ptrace is not permitted";
  const auto [ranks, step] = GetParam();
  const test::TemporaryFolder folder;
  test::save_example(folder / "before", 1);
  test::save_example(folder / "before", 2);
  const auto save = saver(ranks);
  int stops = 0;
  for (bool killed = true; killed && !HasFailure(); ++stops) {
    const fs::path run = folder / std::to_string(stops);
    fs::copy(folder / "before", run, fs::copy_options::recursive);
    killed = killed_at(stops, [&, step = step] { save(run, step); });
    SCOPED_TRACE("stop " + std::to_string(stops));
    test::expect_resumable(run, killed ? 2 : step);
    fs::remove_all(run);
  }
  EXPECT_GT(stops, 100);
}

INSTANTIATE_TEST_SUITE_P(RanksAndNewOrSameStep, CheckpointKilledLong,
                         testing::Combine(testing::Values(1, 3), testing::Values(3, 2)));

}  // namespace checkpoint_long_test
}  // namespace hero
