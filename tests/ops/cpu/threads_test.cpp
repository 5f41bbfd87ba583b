// Our loops use the number of threads that LibTorch is configured for. In a target without OpenMP,
// at::parallel_for silently runs one chunk.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "ops/cpu/gemm.h"

namespace hero::test {
namespace threads_test {

// Collects thread ids; each thread waits up to five seconds for a second one.
class ThreadRendezvous {
 public:
  void arrive() {
    {
      const std::lock_guard lock(mutex_);
      ids_.insert(omp_get_thread_num());
    }
    for (int i = 0; i < 5000 && ids().size() < 2; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::set<int> ids() {
    const std::lock_guard lock(mutex_);
    return ids_;
  }

 private:
  std::mutex mutex_;
  std::set<int> ids_;
};

class Threads : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(2); }
  void TearDown() override { at::set_num_threads(before_); }
  int before_ = at::get_num_threads();
};

TEST_F(Threads, ParallelForUsesTwo) {
  ThreadRendezvous rendezvous;
  at::parallel_for(0, 2, 1, [&](int64_t, int64_t) { rendezvous.arrive(); });
  EXPECT_EQ(rendezvous.ids(), (std::set<int>{0, 1}));
}

TEST_F(Threads, ParallelTasksUseTwo) {
  ThreadRendezvous rendezvous;
  cpu::parallel_tasks(2, [&](int64_t) { rendezvous.arrive(); });
  EXPECT_EQ(rendezvous.ids(), (std::set<int>{0, 1}));
}

TEST_F(Threads, ParallelTasksRunEachOnce) {
  for (const int64_t count : {0, 1, 2, 1000}) {
    std::vector<int> runs(count, 0);
    cpu::parallel_tasks(count, [&](int64_t i) { ++runs[i]; });
    EXPECT_EQ(runs, std::vector<int>(count, 1));
  }
}

TEST_F(Threads, PropagatesExceptionsToCaller) {
  EXPECT_THROW(cpu::parallel_tasks(10,
                                   [](int64_t i) {
                                     if (i == 7) throw std::runtime_error("seven");
                                   }),
               std::runtime_error);
}

}  // namespace threads_test
}  // namespace hero::test
