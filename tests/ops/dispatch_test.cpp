#include <cmath>

#include "ops/assignments.h"
#include "ops/count.h"
#include "ops/ops.h"
#include "ops/random_cases.h"
#include "ops/reference.h"

namespace hero::test {
namespace dispatch_test {

// Expected result of plan(), computed expert by expert.
ops::Plan expected_plan(const at::Tensor& ids, int64_t experts) {
  const int64_t k = ids.size(1);
  std::vector<int64_t> counts, offsets = {0}, token, row(ids.numel(), -1);
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t i = 0; i < ids.numel(); ++i) {
      if (ids.const_data_ptr<int64_t>()[i] != e) continue;
      row[i] = static_cast<int64_t>(token.size());
      token.push_back(i / k);
    }
    counts.push_back(static_cast<int64_t>(token.size()) - offsets.back());
    offsets.push_back(static_cast<int64_t>(token.size()));
  }
  return {at::tensor(counts, at::kLong), at::tensor(offsets, at::kLong), at::tensor(token, at::kLong),
          at::tensor(row, at::kLong).view_as(ids)};
}

at::Tensor one_hot_rows(const at::Tensor& row,
                        int64_t rows) {  // [T, K] -> [T, K, N], zeros for dropped assignments
  return at::one_hot(row + 1, rows + 1).slice(-1, 1).to(at::kDouble);
}

using DispatchTest = DeviceTest;
HERO_ON_DEVICES(DispatchTest);

TEST_P(DispatchTest, Counts) {
  for (const auto& c : all_cases(kExpertsCases)) {
    SCOPED_TRACE(name(c));
    const auto ids = ids_of(c);
    const auto got = ops::count_assignments(ids.view({1, -1}).to(device()), c.experts);
    EXPECT_TRUE(same(got[0].cpu(), expected_plan(ids, c.experts).counts));
  }
  const auto ids = integers(-1, 5, {3, 700}, 9);
  const auto got = ops::count_assignments(ids.to(device()), 5);
  for (int64_t g = 0; g < 3; ++g)
    EXPECT_TRUE(same(got[g].cpu(), expected_plan(ids[g].unsqueeze(1), 5).counts)) << g;
  EXPECT_TRUE(same(ops::count_assignments_reference(ids, 5), got.cpu()));
  EXPECT_TRUE(same(ops::count_assignments(at::empty({2, 0}, ids.options()).to(device()), 5).cpu(),
                   at::zeros({2, 5}, at::kLong)));
}

TEST_P(DispatchTest, ValuesOfThePlan) {
  for (const auto& c : all_cases(kExpertsCases)) {
    SCOPED_TRACE(name(c));
    const auto ids = ids_of(c);
    const auto want = expected_plan(ids, c.experts);
    const auto plan = ops::plan(ids.to(device()), c.experts);
    const auto [counts, offsets, token, row] = ops::plan_reference(ids.to(device()), c.experts);
    for (const auto& got : {plan, ops::Plan{counts, offsets, token, row}}) {
      const int64_t used = want.token.size(0);
      EXPECT_TRUE(same(got.counts.cpu(), want.counts));
      EXPECT_TRUE(same(got.offsets.cpu(), want.offsets));
      EXPECT_TRUE(same(got.token.slice(0, 0, used).cpu(), want.token));
      EXPECT_EQ(got.token.slice(0, used).ne(0).sum().item<int64_t>(), 0);
      EXPECT_TRUE(same(got.row.cpu(), want.row));
    }
    EXPECT_EQ(plan.token.size(0), device() == at::kCUDA ? ids.numel() : want.token.size(0));
  }
}

TEST_P(DispatchTest, ValuesAndGradientsOfPermute) {
  for (const auto& c : all_cases(kExpertsCases)) {
    if (c.timed) continue;
    SCOPED_TRACE(name(c));
    const auto permute = [&](const std::vector<at::Tensor>& in) {
      // Without the padding rows at the end of a plan on CUDA.
      const auto used = in[1].ge(0).sum().item<int64_t>();
      return std::vector{ops::permute(in[0], ops::plan(in[1], c.experts)).slice(0, 0, used)};
    };
    const auto want = [&](const std::vector<at::Tensor>& in) {
      const auto plan = expected_plan(in[1].cpu(), c.experts);
      const auto choose = at::one_hot(plan.token, c.tokens).to(in[0].device(), at::kDouble);
      return std::vector{at::mm(choose, in[0])};
    };
    // The copy is exact; its gradient sums the rows of a token.
    check(permute, want, {{normal({c.tokens, c.width}, 1)}, {ids_of(c), Role::kFixed}}, {{0, 0}},
          {kRoundedOnce});
  }
}

TEST_P(DispatchTest, ValuesAndGradientsOfCombine) {
  for (const auto& c : all_cases(kExpertsCases)) {
    if (c.timed) continue;
    SCOPED_TRACE(name(c));
    const auto ids = ids_of(c);
    const auto rows = device() == at::kCUDA ? ids.numel() : expected_plan(ids, c.experts).token.size(0);
    const auto combine = [&](const std::vector<at::Tensor>& in) {
      return std::vector{
          ops::combine(in[0], in[1], ops::plan(in[2], c.experts), in.size() > 3 ? in[3] : at::Tensor())};
    };
    const auto want = [&](const std::vector<at::Tensor>& in) {
      const auto row = expected_plan(in[2].cpu(), c.experts).row.to(in[0].device());
      const auto sum = at::einsum("tk,tkn,nd->td", {in[1], one_hot_rows(row, rows), in[0]});
      return std::vector{in.size() > 3 ? sum + in[3] : sum};
    };
    std::vector<Operand> operands = {
        {normal({rows, c.width}, 1)}, {normal({c.tokens, c.k}, 2), Role::kAccumulate}, {ids, Role::kFixed}};
    check(combine, want, operands, {kRoundedOnce}, {kRoundedOnce, kFp32});
    operands.push_back({normal({c.tokens, c.width}, 3)});
    check(combine, want, operands, {kRoundedOnce}, {kRoundedOnce, kFp32, {0, 0}});
  }
}

// A full layer, forward and backward: padding rows of a plan on CUDA have no effect.
TEST_P(DispatchTest, ValuesAndGradientsOfALayer) {
  for (const auto& c : all_cases(kExpertsCases)) {
    if (c.timed) continue;
    SCOPED_TRACE(name(c));
    const auto layer = [&](const std::vector<at::Tensor>& in) {
      const auto plan = ops::plan(in[4], c.experts);
      const auto rows = ops::experts(ops::permute(in[0], plan), in[1], in[2], plan);
      EXPECT_TRUE(rows.isfinite().all().item<bool>());
      return std::vector{ops::combine(rows, in[3], plan)};
    };
    const auto want = [&](const std::vector<at::Tensor>& in) {
      const auto chosen = one_hot_rows(in[4], c.experts) * in[3].unsqueeze(2);  // [T, K, E]
      const auto halves = at::einsum("td,efd->tef", {in[0], in[1]}).chunk(2, 2);
      const auto every = at::einsum("tef,edf->ted", {at::silu(halves[0]) * halves[1], in[2]});
      return std::vector{at::einsum("tke,ted->td", {chosen, every})};
    };
    const auto scale = [](int64_t n) { return 1 / std::sqrt(static_cast<double>(n)); };
    const auto layer_tolerance =
        Tolerance{1.01 * kBf16Rounding, 32 * kBf16Rounding, 1.5 * kBf16Rounding} * c.slack;
    check(layer, want,
          {{normal({c.tokens, c.width}, 1)},
           {normal({c.experts, 2 * c.inner, c.width}, 2, scale(c.width)), Role::kWeight},
           {normal({c.experts, c.width, c.inner}, 3, scale(c.inner)), Role::kWeight},
           {normal({c.tokens, c.k}, 5), Role::kAccumulate},
           {ids_of(c), Role::kFixed}},
          {layer_tolerance}, {layer_tolerance, layer_tolerance, layer_tolerance, layer_tolerance});
  }
}

TEST(Dispatch, DroppedAssignmentsGiveExactZeros) {
  for (const auto type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const auto ids = at::tensor({0, 1, -1, -1, 2, -1}, at::kLong).view({3, 2});
    const auto plan = ops::plan(ids, 3);
    const auto x = normal({3, 16}, 1).to(type).set_requires_grad(true);
    const auto weights =
        normal({3, 2}, 2).to(type == at::kDouble ? at::kDouble : at::kFloat).set_requires_grad(true);
    const auto y = ops::combine(ops::permute(x, plan), weights, plan);
    y.sum().backward();
    EXPECT_TRUE(same(y.select(0, 1), at::zeros({16}, type)));
    EXPECT_TRUE(same(x.grad().select(0, 1), at::zeros({16}, type)));
    EXPECT_EQ(weights.grad().masked_select(ids.lt(0)).abs().max().item<double>(), 0.0);
    EXPECT_GT(weights.grad().masked_select(ids.ge(0)).abs().min().item<double>(), 0.0);
  }
}

TEST(Dispatch, GradientsMatchFiniteDifferences) {
  const auto ids = at::tensor({0, 1, -1, 0, 2, -1, 0, 2}, at::kLong).view({4, 2});
  const auto permute_and_combine = [](const std::vector<at::Tensor>& in) {
    const auto plan = ops::plan(in[2], 3);
    return std::vector{ops::combine(ops::permute(in[0], plan).square(), in[1], plan, in[0])};
  };
  check_finite_differences(
      permute_and_combine,
      {{normal({4, 3}, 1)}, {normal({4, 2}, 2), Role::kAccumulate}, {ids, Role::kFixed}});
}

TEST(Dispatch, BitwiseReproducibleForAnyThreadCount) {
  for (const auto type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const ExpertsCase c{300, 4, 16, 48, 16, Load::kDropped};
    const auto permute_and_combine = [&](const std::vector<at::Tensor>& in) {
      const auto plan = ops::plan(in[2], c.experts);
      return std::vector{ops::combine(ops::permute(in[0], plan), in[1], plan, in[0])};
    };
    check_reproducible(permute_and_combine,
                       {{normal({c.tokens, c.width}, 1)},
                        {normal({c.tokens, c.k}, 2), Role::kAccumulate},
                        {ids_of(c), Role::kFixed}},
                       type);
  }
}

TEST(Dispatch, RejectsInvalidArguments) {
  EXPECT_EQ(error_of([] { ops::count_assignments(at::zeros({3}, at::kLong), 4); }),
            "count_assignments: ids must be int64 [G, N], got Long [3]");
  EXPECT_EQ(error_of([] { ops::count_assignments(at::full({1, 3}, 4, at::kLong), 4); }),
            "count_assignments: ids must lie in [-1, 4), got 4");
  EXPECT_EQ(error_of([] { ops::plan(at::zeros({3}, at::kLong), 4); }),
            "plan: ids must be int64 [T, K], got Long [3]");
  EXPECT_EQ(error_of([] { ops::plan(at::zeros({3, 1}, at::kInt), 4); }),
            "plan: ids must be int64 [T, K], got Int [3, 1]");
  EXPECT_EQ(error_of([] { ops::plan(at::full({3, 1}, 4, at::kLong), 4); }),
            "plan: ids must lie in [-1, 4), got 4");
  EXPECT_EQ(error_of([] { ops::plan(at::full({3, 1}, -2, at::kLong), 4); }),
            "plan: ids must lie in [-1, 4), got -2");
  const auto plan = ops::plan(at::zeros({3, 1}, at::kLong), 4);
  EXPECT_EQ(error_of([&] { ops::combine(at::zeros({3, 8}), at::zeros({3, 2}), plan); }),
            "combine: weights must be [T, K] = [3, 1], got [3, 2]");
  EXPECT_EQ(error_of([&] { ops::combine(at::zeros({3, 8}), at::zeros({3, 1}), plan, at::zeros({2, 8})); }),
            "combine: the base must be [T, D] = [3, 8] Float, got [2, 8] Float");
}

}  // namespace dispatch_test
}  // namespace hero::test
