#include "cuda/emulate_cluster.h"
#include "cuda/emulate_mma.h"
#include "cuda/run.h"
#include "ops/cases.h"
#include "ops/cuda/kernels/cross_entropy_clusters.cuh"
#include "ops/random_cases.h"

namespace hero::test {
namespace cross_entropy_kernels_test {

using namespace ops::cuda;

at::Tensor targets_of(const CrossEntropyCase& c) {
  auto targets = integers(0, c.vocabulary, {c.tokens}, 2);
  targets[0] = c.vocabulary - 1;
  if (c.ignored) targets.slice(0, 0, c.tokens, 3).fill_(-1);
  return targets;
}

/// Logits, with what the kernels should make of them.
struct Rows {
  at::Tensor before, targets, logits, losses, want_losses, want;  // logits, losses: outputs

  Rows(const at::Tensor& z, const at::Tensor& targets)
      : before(z.to(at::kFloat).contiguous()),
        targets(targets),
        logits(before.clone()),
        losses(at::full({z.size(0)}, NAN, at::kFloat)) {
    const auto kept = targets.ge(0).to(at::kDouble), index = targets.clamp_min(0);
    const auto log_probs = z.to(at::kDouble).log_softmax(1);
    want_losses = -log_probs.gather(1, index.unsqueeze(1)).squeeze(1) * kept;
    want = (log_probs.exp() - at::one_hot(index, z.size(1)).to(at::kDouble)) * kept.unsqueeze(1);
  }

  CrossEntropyParams params() const {
    return {.vocabulary = before.size(1),
            .logits = logits.data_ptr<float>(),
            .targets = targets.const_data_ptr<int64_t>(),
            .losses = losses.data_ptr<float>()};
  }

  // Runs `kernel()` in both thread orders and checks losses, and gradients in the front part of the rows of
  // the logits. The rest of a row is unspecified, so whole rows are not compared between the orders.
  void check_gradients(at::ScalarType type, const std::function<std::string()>& kernel) const {
    const auto gradient = logits.view(type).slice(1, 0, before.size(1));
    for (const auto order : {emulate::Order::kDescending, emulate::Order::kAscending}) {
      logits.copy_(before);
      losses.fill_(NAN);
      emulate::set_order(order);
      ASSERT_EQ(kernel(), "");
      EXPECT_TRUE(close(losses, want_losses, kFp32));
      // At the target, 1 is subtracted from a value close to 1.
      EXPECT_TRUE(close(gradient, want, type == at::kFloat ? Tolerance{2e-6, 1e-5} : kRoundedOnce));
      const auto ignored = gradient.index({targets.lt(0)});
      EXPECT_TRUE(same(ignored, at::zeros_like(ignored)));
    }
  }
};

template <int n, typename T>
void check(const at::Tensor& z, const at::Tensor& targets, at::ScalarType type) {
  const Rows rows(z, targets);
  const dim3 grid{static_cast<unsigned>(z.size(0))};
  launch({rows.losses, rows.logits}, losses_and_gradients<n, false, T>, grid, {kLossThreads}, rows.params());
  EXPECT_TRUE(close(rows.losses, rows.want_losses, kFp32));
  EXPECT_TRUE(same(rows.logits, rows.before));
  rows.check_gradients(type, [&] {
    return emulate::launch(losses_and_gradients<n, true, T>, grid, {kLossThreads}, rows.params());
  });
}

// The same gradients from clusters of a number of blocks.
template <int n, typename T>
void check_clusters(const at::Tensor& z, const at::Tensor& targets, at::ScalarType type, int blocks) {
  SCOPED_TRACE(::testing::Message() << blocks << " blocks per cluster");
  const Rows rows(z, targets);
  const dim3 grid{static_cast<unsigned>(z.size(0) * blocks)};
  rows.check_gradients(type, [&] {
    return emulate::launch_clusters(losses_and_gradients_in_clusters<n, T>, grid,
                                    static_cast<unsigned>(blocks), {kRowThreads}, rows.params());
  });
}

TEST(CudaCrossEntropy, LossesAndGradientsInPlace) {
  for (const auto& c : all_cases(kCrossEntropyCases)) {
    if (c.timed) continue;
    SCOPED_TRACE(::testing::Message() << "T " << c.tokens << " V " << c.vocabulary);
    const auto z = normal({std::min<int64_t>(c.tokens, 9), c.vocabulary}, 1, 3.0);
    const auto targets = targets_of(c).slice(0, 0, z.size(0)).contiguous();
    check<1, c10::BFloat16>(z, targets, at::kBFloat16);
    check<1, float>(z, targets, at::kFloat);
    check_clusters<1, c10::BFloat16>(z, targets, at::kBFloat16, row_parts(c.vocabulary, 1).blocks);
    if (c.vocabulary % 4) continue;
    check<4, c10::BFloat16>(z, targets, at::kBFloat16);
    check<4, c10::Half>(z, targets, at::kHalf);
    check<4, float>(z, targets, at::kFloat);
    check_clusters<4, c10::Half>(z, targets, at::kHalf, row_parts(c.vocabulary, 4).blocks);
  }
}

// Several tiles per row, the last one partial.
TEST(CudaCrossEntropy, LongRowsSpanSeveralTiles) {
  const auto targets = at::tensor({0, 6003, -1, 2047, 2048}, at::kLong);
  const auto z = normal({5, 6004}, 1, 3.0);
  check<4, c10::BFloat16>(z, targets, at::kBFloat16);
  check<1, c10::BFloat16>(z.slice(1, 0, 2051).contiguous(), targets.clamp_max(2050), at::kBFloat16);
  check<4, float>(z, targets, at::kFloat);
}

// Rows of which some blocks have several tiles, one, a partial one or none.
TEST(CudaCrossEntropy, ClustersOfBlocksShareARow) {
  for (const int64_t v : {6004, 2052, 1020, 12}) {
    SCOPED_TRACE(::testing::Message() << "V " << v);
    const auto z = normal({4, v}, 1, 3.0), targets = at::tensor({int64_t{0}, v - 1, int64_t{-1}, v / 2});
    for (const int blocks : {1, 2, 4, 8}) {
      check_clusters<4, c10::BFloat16>(z, targets, at::kBFloat16, blocks);
      check_clusters<1, float>(z.slice(1, 0, v - 1).contiguous(), targets.clamp_max(v - 2), at::kFloat,
                               blocks);
    }
  }
}

TEST(CudaCrossEntropy, ClustersAreAsSmallAsSharedMemoryAllows) {
  const auto parts = [](int64_t vocabulary, int n) {
    const auto found = row_parts(vocabulary, n);
    return std::pair(found.blocks, found.bytes);
  };
  EXPECT_EQ(parts(1, 1), std::pair(1, int64_t{1152}));
  EXPECT_EQ(parts(16384, 4), std::pair(1, int64_t{65664}));
  EXPECT_EQ(parts(16388, 4), std::pair(2, int64_t{36992}));
  EXPECT_EQ(parts(128256, 4), std::pair(8, int64_t{65664}));
  EXPECT_EQ(parts(151936, 4), std::pair(8, int64_t{77952}));
}

TEST(CudaCrossEntropy, LargeLogitsStayFinite) {
  const auto z = at::tensor({1e5, -1e5, 3e4, 0.0, -3e37, -3e37, -3e37, -3e37}, at::kDouble).view({2, 4});
  const auto targets = at::tensor({2, 1}, at::kLong);
  check<4, float>(z, targets, at::kFloat);
  check_clusters<4, float>(z, targets, at::kFloat, 2);
}

TEST(CudaCrossEntropy, RejectsTargetsBeyondVocabulary) {
  auto logits = at::zeros({1, 8}), losses = at::zeros({1});
  const auto targets = at::full({1}, 8, at::kLong);
  const CrossEntropyParams params{.vocabulary = 8,
                                  .logits = logits.data_ptr<float>(),
                                  .targets = targets.const_data_ptr<int64_t>(),
                                  .losses = losses.data_ptr<float>()};
  EXPECT_NE(emulate::launch(losses_and_gradients<4, true, float>, {1}, {kLossThreads}, params), "");
  EXPECT_NE(
      emulate::launch_clusters(losses_and_gradients_in_clusters<4, float>, {2}, 2, {kRowThreads}, params),
      "");
}

}  // namespace cross_entropy_kernels_test
}  // namespace hero::test
