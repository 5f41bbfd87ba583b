// An NCCL group with one rank, because two ranks need two GPUs: each operation goes through the backend and
// must match a group without a backend.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "distributed/backends.h"
#include "distributed/group.h"
#include "ops/cuda_library.h"

namespace hero {
namespace nccl_test {

class Nccl : public testing::Test {
 protected:
  void SetUp() override {
    if (!load_cuda_library()) GTEST_SKIP() << cuda_unavailable_reason();
    const auto store = c10::make_intrusive<c10d::HashStore>();
    group_ = std::make_unique<Group>("one rank", std::vector<int64_t>{0}, 0,
                                     make_nccl_backend(store, 0, 1, std::chrono::seconds(60)));
  }

  static at::Tensor arange(at::ScalarType type, double first) {
    return (at::arange(24, at::kDouble) + first).view({6, 4}).to(at::Device(at::kCUDA, 0), type);
  }

  std::unique_ptr<Group> group_;
};

TEST_F(Nccl, reductions) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong}) {
    const auto in = arange(type, 1), sum = in.clone(), part = at::zeros_like(in);
    group_->all_reduce(sum).wait();
    group_->reduce_scatter(part, in).wait();
    EXPECT_TRUE(sum.equal(in) && part.equal(in)) << type;
  }
}

TEST_F(Nccl, moves_data_of_every_dtype) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong, at::kBool}) {
    const auto in = arange(type, 0), gathered = at::zeros_like(in), exchanged = at::zeros_like(in);
    group_->all_gather(gathered, in).wait();
    group_->all_to_all(exchanged, in, {6}, {6}).wait();
    EXPECT_TRUE(gathered.equal(in) && exchanged.equal(in)) << type;
  }
}

// Work launched after wait() runs after the operation, even though that uses another stream.
TEST_F(Nccl, work_after_wait_sees_the_result) {
  auto long_in = at::ones({1 << 24}, at::TensorOptions(at::Device(at::kCUDA, 0)).dtype(at::kFloat));
  const auto out = at::zeros_like(long_in);
  for (int i = 0; i < 10; ++i) long_in = long_in + 1;
  auto work = group_->all_gather(out, long_in);
  work.wait();
  EXPECT_EQ((out - 11).abs().max().item<float>(), 0);
}

}  // namespace nccl_test
}  // namespace hero
