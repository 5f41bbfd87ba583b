#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "checkpoint/example_run.h"

namespace hero {
namespace {

namespace fs = std::filesystem;

TEST(CheckpointKilledLong, AtSixtyRandomMoments) {
  const test::TemporaryFolder run;
  int64_t last = 1;
  test::save_example(run.path(), last);
  std::mt19937 random(7);
  for (int i = 0; i < 60 && !HasFailure(); ++i) {
    last = test::save_until_killed(run.path(), last + 1,
                                   std::uniform_int_distribution<int64_t>(0, 100000)(random));
    test::expect_resumable(run.path(), last);
    last += 1;
  }
}

// Runs `save` in a child and kills it when it has made `calls` system calls (each stops it twice, before and
// after). False if the child ends before that.
template <typename Save>
bool killed_after(int calls, Save&& save) {
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
  waitpid(child, &status, 0);
  for (int i = 0; i < 2 * calls && WIFSTOPPED(status); ++i) {
    ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    waitpid(child, &status, 0);
  }
  if (WIFSTOPPED(status)) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return true;
  }
  EXPECT_EQ(WEXITSTATUS(status), 0);
  return false;
}

bool can_trace() {
  const pid_t child = fork();
  if (child == 0) _exit(ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0 ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

class CheckpointKilledLong : public testing::TestWithParam<int64_t> {};

TEST_P(CheckpointKilledLong, AtEverySystemCall) {
  if (!can_trace()) GTEST_SKIP() << "no ptrace here";
  const int64_t step = GetParam();
  const test::TemporaryFolder folder;
  test::save_example(folder / "before", 1);
  test::save_example(folder / "before", 2);
  int calls = 0;
  for (bool killed = true; killed && !HasFailure(); ++calls) {
    const fs::path run = folder / std::to_string(calls);
    fs::copy(folder / "before", run, fs::copy_options::recursive);
    killed = killed_after(calls, [&] { test::save_example(run, step); });
    SCOPED_TRACE("system call " + std::to_string(calls));
    test::expect_resumable(run, killed ? 2 : step);
    fs::remove_all(run);
  }
  EXPECT_GT(calls, 100);
}

INSTANTIATE_TEST_SUITE_P(NewStepAndSameStep, CheckpointKilledLong, testing::Values(3, 2));

}  // namespace
}  // namespace hero
