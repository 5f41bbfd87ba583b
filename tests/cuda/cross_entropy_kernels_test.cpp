#include "cuda/run.h"
#include "ops/cases.h"
#include "ops/cuda/kernels/cross_entropy.cuh"
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

// Checks losses, and gradients in the front part of the rows of the logits.
template <int n, typename T>
void check(const at::Tensor& z, const at::Tensor& targets, at::ScalarType type) {
  const int64_t rows = z.size(0), v = z.size(1);
  const auto kept = targets.ge(0).to(at::kDouble), index = targets.clamp_min(0);
  const auto log_probs = z.to(at::kDouble).log_softmax(1);
  const auto want_losses = -log_probs.gather(1, index.unsqueeze(1)).squeeze(1) * kept;
  const auto want = (log_probs.exp() - at::one_hot(index, v).to(at::kDouble)) * kept.unsqueeze(1);
  auto logits = z.to(at::kFloat).contiguous().clone(), losses = at::full({rows}, NAN, at::kFloat);
  const CrossEntropyParams params{.vocabulary = v,
                                  .logits = logits.data_ptr<float>(),
                                  .targets = targets.const_data_ptr<int64_t>(),
                                  .losses = losses.data_ptr<float>()};
  const auto gradient = logits.view(type).slice(1, 0, v);
  const dim3 grid{static_cast<unsigned>(rows)};
  const auto before = logits.clone();
  launch({losses, logits}, losses_and_gradients<n, false, T>, grid, {kLossThreads}, params);
  EXPECT_TRUE(close(losses, want_losses, kFp32));
  EXPECT_TRUE(same(logits, before));
  losses.fill_(NAN);
  launch({losses}, losses_and_gradients<n, false, T>, grid, {kLossThreads}, params);
  // The rest of a row is unspecified, so whole rows are not compared between thread orders.
  for (const auto order : {emulate::Order::kDescending, emulate::Order::kAscending}) {
    logits.copy_(before);
    emulate::set_order(order);
    ASSERT_EQ(emulate::launch(losses_and_gradients<n, true, T>, grid, {kLossThreads}, params), "");
    EXPECT_TRUE(close(losses, want_losses, kFp32));
    // At the target, 1 is subtracted from a value close to 1.
    EXPECT_TRUE(close(gradient, want, type == at::kFloat ? Tolerance{2e-6, 1e-5} : kRoundedOnce));
    const auto ignored = gradient.index({targets.lt(0)});
    EXPECT_TRUE(same(ignored, at::zeros_like(ignored)));
  }
}

TEST(CudaCrossEntropy, LossesAndGradientsInPlace) {
  for (const auto& c : all_cases(kCrossEntropyCases)) {
    if (c.timed) continue;
    SCOPED_TRACE(::testing::Message() << "T " << c.tokens << " V " << c.vocabulary);
    const auto z = normal({std::min<int64_t>(c.tokens, 9), c.vocabulary}, 1, 3.0);
    const auto targets = targets_of(c).slice(0, 0, z.size(0)).contiguous();
    check<1, c10::BFloat16>(z, targets, at::kBFloat16);
    check<1, float>(z, targets, at::kFloat);
    if (c.vocabulary % 4) continue;
    check<4, c10::BFloat16>(z, targets, at::kBFloat16);
    check<4, c10::Half>(z, targets, at::kHalf);
    check<4, float>(z, targets, at::kFloat);
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

TEST(CudaCrossEntropy, LargeLogitsStayFinite) {
  const auto z = at::tensor({1e5, -1e5, 3e4, 0.0, -3e37, -3e37, -3e37, -3e37}, at::kDouble).view({2, 4});
  check<4, float>(z, at::tensor({2, 1}, at::kLong), at::kFloat);
}

TEST(CudaCrossEntropy, RejectsTargetsBeyondVocabulary) {
  auto logits = at::zeros({1, 8}), losses = at::zeros({1});
  const auto targets = at::full({1}, 8, at::kLong);
  EXPECT_NE(emulate::launch(losses_and_gradients<4, true, float>, {1}, {kLossThreads},
                            CrossEntropyParams{.vocabulary = 8,
                                               .logits = logits.data_ptr<float>(),
                                               .targets = targets.const_data_ptr<int64_t>(),
                                               .losses = losses.data_ptr<float>()}),
            "");
}

}  // namespace cross_entropy_kernels_test
}  // namespace hero::test
