// When a rank is lost, all others abort with a message that names it and its last activity.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "distributed/loop.h"
#include "distributed/processes.h"
#include "io/error.h"

namespace hero {
namespace failure_test {

constexpr double kTimeout = 2;       // parallel.timeout
constexpr double kTestTimeout = 20;  // generous: test machines are busy
constexpr int64_t kForever = 1'000'000'000;

// Completed steps of every process, in shared memory.
class Progress {
 public:
  Progress()
      : steps_(static_cast<std::atomic<int64_t>*>(mmap(nullptr, kRanks * sizeof(std::atomic<int64_t>),
                                                       PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                                                       0))) {}
  ~Progress() { munmap(steps_, kRanks * sizeof(std::atomic<int64_t>)); }

  void report(int64_t step) const { steps_[std::stoi(std::getenv("RANK"))] = step; }
  void wait_for(int ranks, int64_t step) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (int rank = 0; rank < ranks; ++rank) {
      while (steps_[rank] < step) {
        ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "rank " << rank << " makes no progress";
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    }
  }

 private:
  static constexpr size_t kRanks = 8;
  std::atomic<int64_t>* steps_;
};

void pause(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

// All ranks but `lost` exit with status 1 and a message with that rank's pid, step and operation.
void expect_named(Processes& processes, int ranks, int lost, pid_t pid, const std::string& what) {
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == lost) continue;
    const ExitResult result = processes.wait(rank, kTestTimeout);
    EXPECT_EQ(result.status, 1) << result.error;
    const std::string name = "rank " + std::to_string(lost) + " (host ";
    EXPECT_NE(result.error.find(name), std::string::npos) << result.error;
    EXPECT_NE(result.error.find(", pid " + std::to_string(pid) + ")"), std::string::npos) << result.error;
    EXPECT_NE(result.error.find(what), std::string::npos) << result.error;
    EXPECT_TRUE(result.error.find("it was at step ") != std::string::npos ||
                result.error.find(" is at step ") != std::string::npos)
        << result.error;
    EXPECT_NE(result.error.find(" over all ranks, operation "), std::string::npos) << result.error;
    EXPECT_EQ(std::count(result.error.begin(), result.error.end(), '\n'), 1) << result.error;
  }
}

void expect_named_after(int ranks, int lost, int signal, const std::string& what) {
  Progress progress;
  Processes processes(ranks, [&] {
    loop_over_collectives(kTimeout, kForever, [&](int64_t step) { progress.report(step); });
  });
  progress.wait_for(ranks, 3);
  pause(500);  // until all have sent a heartbeat
  const pid_t pid = processes.pid(lost);
  kill(pid, signal);
  expect_named(processes, ranks, lost, pid, what);
  if (signal != SIGSTOP) return;
  // The other ranks are gone when it continues.
  kill(pid, SIGCONT);
  const ExitResult result = processes.wait(lost, kTestTimeout);
  EXPECT_EQ(result.status, 1) << result.error;
  EXPECT_NE(result.error, "");
}

TEST(Failure, killed_rank) { expect_named_after(4, 2, SIGKILL, "has sent no heartbeat for "); }
TEST(Failure, killed_first_rank) {
  expect_named_after(4, 0, SIGKILL, ", which hosts the store at 127.0.0.1:");
}
TEST(Failure, stopped_rank) { expect_named_after(4, 3, SIGSTOP, "has sent no heartbeat for "); }
TEST(Failure, stopped_first_rank) { expect_named_after(3, 0, SIGSTOP, "has not responded for "); }

TEST(Failure, rank_that_throws) {
  Processes processes(3, [&] {
    loop_over_collectives(kTimeout, kForever, [&](int64_t step) {
      if (step == 5 && std::string(std::getenv("RANK")) == "1") throw RunError("disk full");
    });
  });
  const pid_t pid = processes.pid(1);
  const ExitResult result = processes.wait(1, kTestTimeout);
  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(result.error, "disk full\n");
  expect_named(processes, 3, 1, pid, "step 5: failed; see the error output of that process");
}

// The rank is alive and sends heartbeats but never joins the next collective.
TEST(Failure, rank_that_never_joins_a_collective) {
  Processes processes(3, [&] {
    loop_over_collectives(kTimeout, kForever, [&](int64_t step) {
      while (step == 5 && std::string(std::getenv("RANK")) == "1") pause(100);
    });
  });
  const pid_t pid = processes.pid(1);
  expect_named(processes, 3, 1, pid, " is at step 5, computing");
  EXPECT_EQ(processes.wait(1, kTestTimeout).status, 1);
}

TEST(Failure, ranks_may_exit_at_different_times) {
  Processes processes(3, [&] {
    loop_over_collectives(1, 5, [&](int64_t step) {
      if (step == 5) pause(2000 * std::stoi(std::getenv("RANK")));
    });
  });
  for (int rank = 0; rank < 3; ++rank) {
    const ExitResult result = processes.wait(rank, kTestTimeout);
    EXPECT_EQ(result.status, 0) << result.error;
    EXPECT_EQ(result.error, "");
  }
}

}  // namespace failure_test
}  // namespace hero
