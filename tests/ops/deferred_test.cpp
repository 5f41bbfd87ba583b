// The queue of deferred weight gradients, on a layer of all operators that support it. Each operator's own
// tests compare deferred with immediate gradients.
#include "ops/deferred.h"

#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <thread>

#include "ops/compare.h"
#include "ops/ops.h"

namespace hero::test {
namespace deferred_test {

constexpr int64_t kTokens = 24, kExperts = 16, kWidth = 32, kInner = 16;

std::vector<Operand> operands() {
  return {{normal({kTokens, kWidth}, 1)},
          {normal({kWidth, kWidth}, 2, 0.2), Role::kWeight},
          {normal({kExperts, kWidth}, 3, 0.2), Role::kWeight},
          {normal({kExperts, 2 * kInner, kWidth}, 4, 0.2), Role::kWeight},
          {normal({kExperts, kWidth, kInner}, 5, 0.2), Role::kWeight},
          {integers(0, kExperts / 2, {kTokens, 2}, 6), Role::kFixed}};
}

// A layer whose weights are operands 1 to 4. Half of the experts get no rows.
std::vector<at::Tensor> layer(const std::vector<at::Tensor>& in) {
  const auto x = ops::linear(in[0], in[1]);
  const auto routed = ops::route(x, in[2], std::nullopt, {});
  const auto plan = ops::plan(in[5], kExperts);
  return {ops::combine(ops::experts(ops::permute(x, plan), in[3], in[4], plan),
                       routed.probs.slice(1, 0, 2).contiguous(), plan)};
}

std::vector<at::Tensor> fp64_leaves() {
  std::vector<at::Tensor> leaves;
  for (const auto& operand : operands())
    leaves.push_back(operand.value.clone().set_requires_grad(operand.role == Role::kWeight));
  return leaves;
}

at::Tensor loss(const std::vector<at::Tensor>& leaves, double scale) {
  return (layer(leaves)[0] * scale).square().sum();
}

TEST(Deferred, GradientsOfALayer) {
  for (const auto type : {at::kBFloat16, at::kFloat, at::kDouble}) check_deferred(layer, operands(), type);
}

TEST(Deferred, FrozenWeightsGetNoGradient) {
  for (const auto type : {at::kBFloat16, at::kDouble}) {
    for (const auto& frozen : std::vector<std::vector<size_t>>{{1}, {2}, {3}, {4}, {3, 4}, {1, 2, 3, 4}}) {
      auto some = operands();
      for (const size_t i : frozen) some[i].gradient = false;
      check_deferred(layer, some, type);
    }
  }
}

TEST(Deferred, MicroBatchesInAnyOrder) {
  const auto want = fp64_leaves(), got = fp64_leaves();
  std::vector<ops::WeightGradientQueue> queues(3);
  for (size_t i = 0; i < queues.size(); ++i) {
    const double scale = 1.0 + 0.3 * static_cast<double>(i);
    loss(want, scale).backward();
    const ops::DeferWeightGradients guard(&queues[i]);
    loss(got, scale).backward();
  }
  for (const size_t i : {1, 2, 0}) {
    EXPECT_FALSE(queues[i].empty());
    queues[i].run();
    EXPECT_TRUE(queues[i].empty());
  }
  for (size_t i = 1; i <= 4; ++i) EXPECT_TRUE(close(got[i].grad(), want[i].grad(), {1e-12, 1e-12}));
}

TEST(Deferred, RunReportsEachWeightOnce) {
  const auto leaves = fp64_leaves();
  ops::WeightGradientQueue queue;
  const ops::DeferWeightGradients guard(&queue);
  std::map<const void*, at::Tensor> seen;
  for (int run = 0; run < 2; ++run) {
    seen.clear();
    loss(leaves, 1.0).backward();
    loss(leaves, 2.0).backward();
    queue.run([&](const at::Tensor& weight) {
      EXPECT_TRUE(seen.emplace(weight.unsafeGetTensorImpl(), weight.grad().clone()).second);
    });
    ASSERT_EQ(seen.size(), 4u);
    for (size_t i = 1; i <= 4; ++i)
      EXPECT_TRUE(same(leaves[i].grad(), seen.at(leaves[i].unsafeGetTensorImpl())));
    queue.run([](const at::Tensor&) { FAIL() << "nothing was deferred"; });
  }
}

TEST(Deferred, NonLeafWeightsAreNotDeferred) {
  const auto of_views = [](const std::vector<at::Tensor>& in) {
    auto views = in;
    for (size_t i = 1; i <= 4; ++i) views[i] = in[i].slice(0, 0);
    return layer(views);
  };
  for (const bool deferred : {false, true}) {
    const auto want = fp64_leaves(), got = fp64_leaves();
    layer(want)[0].sum().backward();
    ops::WeightGradientQueue queue;
    const ops::DeferWeightGradients guard(deferred ? &queue : nullptr);
    of_views(got)[0].sum().backward();
    EXPECT_TRUE(queue.empty());
    for (size_t i = 1; i <= 4; ++i) EXPECT_TRUE(same(got[i].grad(), want[i].grad()));
  }
}

// The queue is determined by the thread and time of the forward pass.
TEST(Deferred, BackwardFindsQueueFromAnyThread) {
  const auto want = fp64_leaves(), got = fp64_leaves();
  loss(want, 1.0).backward();
  ops::WeightGradientQueue queue, other;
  at::Tensor out, inner, unguarded;
  {
    const ops::DeferWeightGradients guard(&queue);
    out = loss(got, 1.0);
    {
      const ops::DeferWeightGradients none(nullptr);
      inner = loss(got, 2.0);
    }
    std::thread([&] { unguarded = loss(got, 3.0); }).join();
    EXPECT_EQ(ops::DeferWeightGradients::queue(), &queue);
  }
  EXPECT_EQ(ops::DeferWeightGradients::queue(), nullptr);
  std::thread([&] {
    const ops::DeferWeightGradients guard(&other);
    out.backward();
  }).join();
  EXPECT_TRUE(other.empty());
  EXPECT_FALSE(got[1].grad().defined());
  queue.run();
  for (size_t i = 1; i <= 4; ++i) EXPECT_TRUE(same(got[i].grad(), want[i].grad()));
  inner.backward();
  unguarded.backward();
  EXPECT_TRUE(queue.empty());
  EXPECT_FALSE(at::equal(got[1].grad(), want[1].grad()));
}

TEST(Deferred, QueueDoesNotKeepGraphAlive) {
  auto leaves = fp64_leaves();
  ops::WeightGradientQueue queue;
  std::weak_ptr<torch::autograd::Node> before;
  {
    const ops::DeferWeightGradients guard(&queue);
    leaves[0] = leaves[0].set_requires_grad(true) * 2;
    before = leaves[0].grad_fn();
    loss(leaves, 1.0).backward();
    leaves[0] = at::Tensor();
  }
  EXPECT_FALSE(queue.empty());
  EXPECT_TRUE(before.expired());
}

TEST(Deferred, ComputesOnlyRequestedGradients) {
  const auto leaves = fp64_leaves();
  const auto x = leaves[0].set_requires_grad(true);
  ops::WeightGradientQueue queue;
  const ops::DeferWeightGradients guard(&queue);
  EXPECT_TRUE(torch::autograd::grad({loss(leaves, 1.0)}, {x})[0].defined());
  EXPECT_TRUE(queue.empty());
}

}  // namespace deferred_test
}  // namespace hero::test
