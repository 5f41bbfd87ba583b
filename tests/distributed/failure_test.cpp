// A rank that is lost ends all others, which say who it was and where.
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
namespace {

constexpr double kTimeout = 2;    // parallel.timeout
constexpr double kPatience = 20;  // until a test gives up: machines that test are busy
constexpr int64_t kForever = 1'000'000'000;

// The steps that every process has done, seen from outside.
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
        ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "rank " << rank << " does not get on";
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    }
  }

 private:
  static constexpr size_t kRanks = 8;
  std::atomic<int64_t>* steps_;
};

void pause(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

// All ranks but `lost` end with status 1; the message names that rank, with its pid, its step and operation.
void expect_named(Processes& processes, int ranks, int lost, pid_t pid, const std::string& what) {
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == lost) continue;
    const Ended ended = processes.wait(rank, kPatience);
    EXPECT_EQ(ended.status, 1) << ended.error;
    const std::string name = "rank " + std::to_string(lost) + " (host ";
    EXPECT_NE(ended.error.find(name), std::string::npos) << ended.error;
    EXPECT_NE(ended.error.find(", pid " + std::to_string(pid) + ")"), std::string::npos) << ended.error;
    EXPECT_NE(ended.error.find(what), std::string::npos) << ended.error;
    EXPECT_TRUE(ended.error.find("it was at step ") != std::string::npos ||
                ended.error.find(" is at step ") != std::string::npos)
        << ended.error;
    EXPECT_NE(ended.error.find(" over all ranks, their operation "), std::string::npos) << ended.error;
    EXPECT_EQ(std::count(ended.error.begin(), ended.error.end(), '\n'), 1) << ended.error;
  }
}

void expect_named_after(int ranks, int lost, int signal, const std::string& what) {
  Progress progress;
  Processes processes(ranks, [&] {
    loop_over_collectives(kTimeout, kForever, [&](int64_t step) { progress.report(step); });
  });
  progress.wait_for(ranks, 3);
  pause(500);  // by then all have given a sign
  const pid_t pid = processes.pid(lost);
  kill(pid, signal);
  expect_named(processes, ranks, lost, pid, what);
  if (signal != SIGSTOP) return;
  // It wakes up alone.
  kill(pid, SIGCONT);
  const Ended ended = processes.wait(lost, kPatience);
  EXPECT_EQ(ended.status, 1) << ended.error;
  EXPECT_NE(ended.error, "");
}

TEST(Failure, killed_rank) { expect_named_after(4, 2, SIGKILL, "has given no sign for "); }
TEST(Failure, killed_first_rank) {
  expect_named_after(4, 0, SIGKILL, ", which serves the store at 127.0.0.1:");
}
TEST(Failure, stopped_rank) { expect_named_after(4, 3, SIGSTOP, "has given no sign for "); }
TEST(Failure, stopped_first_rank) { expect_named_after(3, 0, SIGSTOP, "has not answered for "); }

TEST(Failure, rank_that_gives_up) {
  Processes processes(3, [&] {
    loop_over_collectives(kTimeout, kForever, [&](int64_t step) {
      if (step == 5 && std::string(std::getenv("RANK")) == "1") throw RunError("disk full");
    });
  });
  const pid_t pid = processes.pid(1);
  const Ended ended = processes.wait(1, kPatience);
  EXPECT_EQ(ended.status, 1);
  EXPECT_EQ(ended.error, "disk full\n");
  expect_named(processes, 3, 1, pid, "step 5: given up for the reason it gives");
}

// It lives, gives signs, and never comes to the next collective.
TEST(Failure, rank_that_computes_for_ever) {
  Processes processes(3, [&] {
    loop_over_collectives(kTimeout, kForever, [&](int64_t step) {
      while (step == 5 && std::string(std::getenv("RANK")) == "1") pause(100);
    });
  });
  const pid_t pid = processes.pid(1);
  expect_named(processes, 3, 1, pid, " is at step 5, computing");
  EXPECT_EQ(processes.wait(1, kPatience).status, 1);
}

TEST(Failure, ranks_may_end_at_different_times) {
  Processes processes(3, [&] {
    loop_over_collectives(1, 5, [&](int64_t step) {
      if (step == 5) pause(2000 * std::stoi(std::getenv("RANK")));
    });
  });
  for (int rank = 0; rank < 3; ++rank) {
    const Ended ended = processes.wait(rank, kPatience);
    EXPECT_EQ(ended.status, 0) << ended.error;
    EXPECT_EQ(ended.error, "");
  }
}

}  // namespace
}  // namespace hero
