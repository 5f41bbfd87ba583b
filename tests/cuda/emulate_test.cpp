// The emulator detects the errors that it documents.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "cuda/emulate_cluster.h"

namespace hero::emulate {
namespace emulate_test {

using testing::HasSubstr;

__global__ void reverse(int* values, bool barrier) {
  __shared__ int shared[64];
  shared[threadIdx.x] = values[threadIdx.x];
  if (barrier) __syncthreads();
  values[threadIdx.x] = shared[63 - threadIdx.x];
}

__global__ void divergent_barrier(int) {
  if (threadIdx.x < 16) __syncthreads();
}

__global__ void two_barriers(int) {
  // NOLINTNEXTLINE(bugprone-branch-clone): two source lines
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void divergent_shuffle(int* values) {
  if (threadIdx.x < 20) values[threadIdx.x] = __shfl_xor_sync(0xffffffffu, values[threadIdx.x], 1);
}

__global__ void warp_intrinsics(int* values) {
  const int lane = threadIdx.x;
  values[lane] = __shfl_xor_sync(0xffffffffu, lane, 5);
  values[lane] += 100 * __shfl_up_sync(0xffffffffu, lane, 3);
  values[lane] += 10000 * __shfl_sync(0xffffffffu, lane, 7);
  values[32 + lane] = static_cast<int>(__ballot_sync(0xffffffffu, lane % 3 == 0));
  values[64 + lane] = static_cast<int>(__match_any_sync(0xffffffffu, lane / 10));
}

template <typename T>
__global__ void uninitialized(T* value) {
  __shared__ T shared[4];
  if (blockIdx.x == 0) shared[0] = 1.0f;
  *value = shared[0];
}

// Every block of the cluster passes its number to the next one, which reads it.
__global__ void pass_on(int* values, bool barrier) {
  using namespace ops::cuda;
  __shared__ int received;
  if (threadIdx.x == 0)
    *in_block(&received, (cluster_rank() + 1) % cluster_blocks()) = static_cast<int>(blockIdx.x);
  if (barrier) synchronize_cluster();
  if (threadIdx.x == 1) values[blockIdx.x] = received;
}

__global__ void one_block_synchronizes(int) {
  if (ops::cuda::cluster_rank() == 1) ops::cuda::synchronize_cluster();
}

__global__ void trapped(int) { __trap(); }

std::vector<int> iota(int n) {
  std::vector<int> values(n);
  for (int i = 0; i < n; ++i) values[i] = i;
  return values;
}

class Orders : public testing::TestWithParam<Order> {
 protected:
  void SetUp() override { set_order(GetParam()); }
  void TearDown() override { set_order(Order::kAscending); }
};
INSTANTIATE_TEST_SUITE_P(, Orders, testing::Values(Order::kAscending, Order::kDescending));

TEST_P(Orders, BarriersSeparateWritesFromReads) {
  auto values = iota(64);
  EXPECT_EQ(launch(reverse, {1}, {64}, values.data(), true), "");
  for (int i = 0; i < 64; ++i) EXPECT_EQ(values[i], 63 - i);
  // Without the barrier the first thread reads uninitialized shared memory.
  values = iota(64);
  EXPECT_EQ(launch(reverse, {1}, {64}, values.data(), false), "");
  EXPECT_EQ(values[GetParam() == Order::kAscending ? 0 : 63], -1);
}

TEST_P(Orders, LanesExchangeValues) {
  std::vector<int> values(96);
  EXPECT_EQ(launch(warp_intrinsics, {1}, {32}, values.data()), "");
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(values[i], (i ^ 5) + 100 * (i < 3 ? i : i - 3) + 70000);
    EXPECT_EQ(static_cast<unsigned>(values[32 + i]), 0x49249249u);
    EXPECT_EQ(static_cast<unsigned>(values[64 + i]), i < 30 ? 0x3ffu << (i / 10 * 10) : 0xc0000000u);
  }
}

TEST_P(Orders, DivergentBarriersAreReported) {
  EXPECT_THAT(launch(divergent_barrier, {1}, {32}, 0), HasSubstr("thread 16 has exited the kernel"));
  EXPECT_THAT(launch(two_barriers, {1}, {32}, 0), HasSubstr("divergent: thread 0 waits in __syncthreads at"));
  std::vector<int> values(32);
  EXPECT_THAT(launch(divergent_shuffle, {1}, {32}, values.data()),
              HasSubstr("divergent: thread 0 waits in a shuffle at"));
}

TEST_P(Orders, SharedMemoryIsResetBetweenBlocks) {
  float value = 0;
  EXPECT_EQ(launch(uninitialized<float>, {1}, {1}, &value), "");
  EXPECT_EQ(value, 1.0f);
  EXPECT_EQ(launch(uninitialized<float>, {2}, {1}, &value), "");
  EXPECT_TRUE(std::isnan(value));
}

TEST_P(Orders, BlocksOfAClusterWriteToEachOther) {
  std::vector<int> values(6);
  EXPECT_EQ(launch_clusters(pass_on, {6}, 3, {2}, values.data(), true), "");
  EXPECT_EQ(values, (std::vector<int>{2, 0, 1, 5, 3, 4}));
  // Without the barrier the block that runs first reads uninitialized shared memory.
  EXPECT_EQ(launch_clusters(pass_on, {3}, 3, {2}, values.data(), false), "");
  EXPECT_EQ(values[GetParam() == Order::kAscending ? 0 : 2], -1);
}

TEST_P(Orders, DivergentClustersAreReported) {
  EXPECT_THAT(launch_clusters(one_block_synchronizes, {2}, 2, {32}, 0),
              HasSubstr("divergent: a block waits for its cluster"));
  EXPECT_EQ(launch_clusters(pass_on, {3}, 2, {2}, static_cast<int*>(nullptr), true), "invalid cluster size");
}

TEST_P(Orders, ReportsTrapsAndInvalidLaunches) {
  EXPECT_THAT(launch(trapped, {3}, {2}, 0), HasSubstr("trap at"));
  EXPECT_EQ(launch(trapped, {1}, {2048}, 0), "a block has 2048 threads");
  EXPECT_EQ(launch(trapped, {0}, {32}, 0), "invalid grid size");
}

}  // namespace emulate_test
}  // namespace hero::emulate
