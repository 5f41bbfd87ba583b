#include <cmath>

#include "ops/cases.h"
#include "ops/compare.h"
#include "ops/cpu/gemm.h"
#include "ops/ops.h"
#include "ops/random_cases.h"

namespace hero::test {
namespace route_test {

constexpr double kDepth = 1.7, kEps = 1e-6;

std::string name(const RouteCase& c) {
  return "T " + std::to_string(c.tokens) + " D " + std::to_string(c.width) + " E " +
         std::to_string(c.experts) + " M " + std::to_string(c.visible) + " of " + std::to_string(c.slots) +
         (c.scale ? "" : " unscaled");
}

int64_t first_visible(const RouteCase& c) { return c.slots - 1 - c.visible; }

// x, W, the buffer [T, slots*E] and its sums of squares [T, slots]. The last slot belongs to this router,
// those before it are visible.
std::vector<Operand> operands_of(const RouteCase& c) {
  const double scale = 1 / std::sqrt(static_cast<double>(c.width + c.visible * c.experts));
  const auto probs = normal({c.tokens, c.slots, c.experts}, 3).softmax(-1).to(at::kBFloat16).to(at::kDouble);
  return {{normal({c.tokens, c.width}, 1)},
          {normal({c.experts, c.width + c.visible * c.experts}, 2, scale), Role::kWeight},
          {probs.flatten(1), Role::kValue, false},
          {probs.square().sum(-1), Role::kAccumulate, false}};
}

std::optional<ops::VisibleHistory> history_of(const RouteCase& c, const at::Tensor& buffer,
                                              const at::Tensor& squares) {
  if (c.visible == 0) return std::nullopt;
  const int64_t first = first_visible(c), end = first + c.visible;
  return ops::VisibleHistory{.probs = buffer.slice(1, first * c.experts, end * c.experts),
                             .sumsq = squares.slice(1, first, end),
                             .depth_factor = kDepth,
                             .eps = kEps,
                             .scale = c.scale};
}

ops::HistorySlot slot_of(const RouteCase& c, const at::Tensor& buffer, const at::Tensor& squares) {
  if (c.slots == 0) return {};
  return {buffer.slice(1, (c.slots - 1) * c.experts), squares.select(1, c.slots - 1)};
}

std::vector<at::Tensor> flat(const ops::RouteOutput& out) {
  std::vector<at::Tensor> all = {out.logits, out.probs};
  for (int64_t column = 0; column < ops::kRouteStats; ++column) all.push_back(out.stats.select(1, column));
  return all;
}

Function route(const RouteCase& c) {
  return [c](const std::vector<at::Tensor>& in) {
    return flat(ops::route(in[0], in[1], history_of(c, in[2], in[3]), slot_of(c, in[2], in[3])));
  };
}

// The paper's equations; `detach`: no gradient through rho.
ops::RouteOutput paper(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& h,
                       bool scale, bool detach) {
  const auto z_o = at::mm(x, w.slice(1, 0, x.size(1)).t());
  const auto rms = [](const at::Tensor& t) { return t.square().mean(1).sqrt(); };
  const auto zero = at::zeros({x.size(0)}, x.options());
  auto rms_h = zero, rho = zero, z_r = at::zeros_like(z_o);
  if (h) {
    rms_h = rms(*h);
    rho = scale ? kDepth * rms(x) / (rms_h + kEps) : at::ones_like(zero);
    if (detach) rho = rho.detach();
    z_r = at::mm(*h * rho.unsqueeze(1), w.slice(1, x.size(1)).t());
  }
  const auto z = z_o + z_r;
  std::vector<at::Tensor> stats(ops::kRouteStats);
  stats[ops::kRmsHidden] = rms(x);
  stats[ops::kRmsHistory] = rms_h;
  stats[ops::kRho] = rho;
  stats[ops::kHiddenVariance] = at::var(z_o, 1, false);
  stats[ops::kHistoryVariance] = at::var(z_r, 1, false);
  return {z, z.softmax(1), at::stack(stats, 1).detach()};
}

Function expected(const RouteCase& c) {
  return [c](const std::vector<at::Tensor>& in) {
    const auto history = history_of(c, in[2], in[3]);
    return flat(paper(in[0], in[1], history ? std::optional(history->probs) : std::nullopt, c.scale, true));
  };
}

const std::vector<Tolerance> kOutputs(
    2 + ops::kRouteStats, kFp32);  // fp32 also in bf16 runs: products of bf16 elements are exact in fp32

using RouteTest = DeviceTest;
HERO_ON_DEVICES(RouteTest);

TEST_P(RouteTest, ValuesAndGradients) {
  for (const auto& c : all_cases(kRouteCases)) {
    if (c.timed && type() != at::kBFloat16) continue;
    SCOPED_TRACE(name(c));
    check(route(c), expected(c), operands_of(c), kOutputs, {kRoundedFactors, kRoundedFactors});
  }
}

TEST_P(RouteTest, ValuesOfDeferredGradients) {
  for (const auto& c : all_cases(kRouteCases)) {
    if (c.timed && type() != at::kBFloat16) continue;
    SCOPED_TRACE(name(c));
    check_deferred(route(c), operands_of(c), type(), device());
  }
}

TEST_P(RouteTest, ValuesAndGradientsThroughHistory) {
  for (const bool scale : {true, false}) {
    const auto list = [&](const std::vector<at::Tensor>& in) {
      return flat(ops::route_through(in[0], in[1], {in[2], in[3]}, kDepth, kEps, scale));
    };
    const auto want = [&](const std::vector<at::Tensor>& in) {
      return flat(paper(in[0], in[1], at::cat({in[2], in[3]}, 1), scale, false));
    };
    check(list, want,
          {{normal({9, 32}, 1)},
           {normal({16, 64}, 2, 0.1), Role::kWeight},
           {normal({9, 16}, 3).softmax(1).to(at::kBFloat16).to(at::kDouble)},
           {normal({9, 16}, 4).softmax(1).to(at::kBFloat16).to(at::kDouble)}},
          kOutputs, {kRoundedOnce, kFp32, kRoundedOnce, kRoundedOnce});
  }
}

TEST(Route, GradientsThroughHistoryMatchFiniteDifferences) {
  check_finite_differences(
      [](const std::vector<at::Tensor>& in) {
        return flat(ops::route_through(in[0], in[1], {in[2], in[3]}, kDepth, kEps, true));
      },
      {{normal({3, 4}, 1)},
       {normal({3, 10}, 2), Role::kWeight},
       {normal({3, 3}, 3).softmax(1)},
       {normal({3, 3}, 4).softmax(1)}});
}

// Gradients through rho are detached, so finite differences apply only to W, and to x of a router without
// history.
TEST(Route, GradientsMatchFiniteDifferences) {
  const RouteCase with_history{3, 4, 3, 2, 4}, without_history{3, 4, 3};
  auto operands = operands_of(with_history);
  operands[0].gradient = false;
  check_finite_differences(route(with_history), operands);
  check_finite_differences(route(without_history), operands_of(without_history));
}

TEST(Route, BitwiseReproducibleForAnyThreadCount) {
  if (!cpu::supports_gemm(16)) GTEST_SKIP() << "no fused kernels";
  for (const auto& c : all_cases(kRouteCases)) {
    SCOPED_TRACE(name(c));
    if (c.width % 16 == 0) check_reproducible(route(c), operands_of(c), at::kBFloat16);
  }
}

TEST(Route, WritesOnlyItsSlot) {
  for (const auto& c : all_cases(kRouteCases)) {
    if (c.slots == 0) continue;
    SCOPED_TRACE(name(c));
    for (const auto type : {at::kBFloat16, at::kFloat, at::kDouble}) {
      const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
      const auto operands = operands_of(c);
      const auto x = operands[0].value.to(type), w = operands[1].value.to(type);
      auto buffer = operands[2].value.to(type), squares = operands[3].value.to(wide);
      const auto before = buffer.clone(), squares_before = squares.clone();
      const auto versions = std::pair(buffer._version(), squares._version());
      const auto slot = slot_of(c, buffer, squares);
      const auto out = ops::route(x, w, history_of(c, buffer, squares), slot);
      const int64_t own = (c.slots - 1) * c.experts;
      EXPECT_TRUE(same(buffer.slice(1, own), out.probs.to(type)));
      EXPECT_TRUE(
          close(squares.select(1, c.slots - 1), buffer.slice(1, own).to(at::kDouble).square().sum(1), kFp32));
      EXPECT_TRUE(same(buffer.slice(1, 0, own), before.slice(1, 0, own)));
      EXPECT_TRUE(same(squares.slice(1, 0, c.slots - 1), squares_before.slice(1, 0, c.slots - 1)));
      EXPECT_EQ(std::pair(buffer._version(), squares._version()), versions);

      const auto written = buffer.clone(), written_squares = squares.clone();
      slot.probs.zero_();
      slot.sumsq.zero_();
      const auto again = ops::route(x, w, history_of(c, buffer, squares), slot);
      EXPECT_TRUE(same(buffer, written));
      EXPECT_TRUE(same(squares, written_squares));
      const auto unstored = ops::route(x, w, history_of(c, buffer, squares), {});
      EXPECT_TRUE(same(again.logits, out.logits));
      EXPECT_TRUE(same(unstored.logits, out.logits));
      EXPECT_TRUE(same(unstored.probs, out.probs));
      EXPECT_TRUE(same(unstored.stats, out.stats));
    }
  }
}

// Later layers write to the buffer while earlier layers hold views of it for backward.
TEST(Route, LayersShareABuffer) {
  const int64_t layers = 4, e = 16, d = 32, t = 9;
  auto buffer = at::zeros({t, (layers - 1) * e}, at::kBFloat16),
       squares = at::zeros({t, layers - 1}, at::kFloat);
  buffer.set_requires_grad(false);
  auto x = normal({t, d}, 1).to(at::kBFloat16).set_requires_grad(true);
  auto h = x;
  at::Tensor sum = at::zeros({});
  for (int64_t l = 0; l < layers; ++l) {
    const auto w = normal({e, d + l * e}, 10 + l, 0.2).to(at::kBFloat16).set_requires_grad(true);
    const auto history = l ? std::optional(ops::VisibleHistory{buffer.slice(1, 0, l * e),
                                                               squares.slice(1, 0, l), kDepth, kEps, true})
                           : std::nullopt;
    const auto slot = l + 1 < layers
                          ? ops::HistorySlot{buffer.slice(1, l * e, (l + 1) * e), squares.select(1, l)}
                          : ops::HistorySlot{};
    sum = sum + ops::route(h, w, history, slot).logits.square().sum();
    h = h * 0.9;
  }
  sum.backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_FALSE(buffer.requires_grad());
  EXPECT_FALSE(buffer.grad().defined());
}

TEST(Route, HistoryGetsNoGradient) {
  for (const auto type : {at::kBFloat16, at::kDouble}) {
    const RouteCase c{7, 32, 16, 2, 3};
    const auto operands = operands_of(c);
    const auto x = operands[0].value.to(type).set_requires_grad(true),
               w = operands[1].value.to(type).set_requires_grad(true);
    const auto buffer = operands[2].value.to(type).set_requires_grad(true);
    const auto squares =
        operands[3].value.to(type == at::kDouble ? at::kDouble : at::kFloat).set_requires_grad(true);
    const auto out = ops::route(x, w, history_of(c, buffer, squares), {});
    EXPECT_FALSE(out.stats.requires_grad());
    (out.logits.square().sum() + out.probs.square().sum()).backward();
    EXPECT_TRUE(w.grad().defined());
    EXPECT_FALSE(buffer.grad().defined());
    EXPECT_FALSE(squares.grad().defined());
  }
}

TEST(Route, ZeroHistoryWeightsMatchBaseline) {
  for (const auto& c : all_cases(kRouteCases)) {
    if (c.visible == 0) continue;
    SCOPED_TRACE(name(c));
    for (const auto type : {at::kBFloat16, at::kFloat, at::kDouble}) {
      const auto operands = operands_of(c);
      const auto x = operands[0].value.to(type), buffer = operands[2].value.to(type);
      const auto squares = operands[3].value.to(type == at::kDouble ? at::kDouble : at::kFloat);
      auto w = operands[1].value.to(type);
      w.slice(1, c.width).zero_();
      const auto hero = ops::route(x, w, history_of(c, buffer, squares), {});
      const auto baseline = ops::route(x, w.slice(1, 0, c.width).contiguous(), std::nullopt, {});
      EXPECT_TRUE(same(hero.logits, baseline.logits));
      EXPECT_TRUE(same(hero.probs, baseline.probs));
    }
  }
}

// Softmax of large logits gives one and zeros, not NaN.
TEST(Route, StaysFiniteWithLargeLogits) {
  for (const auto type : {at::kBFloat16, at::kFloat}) {
    const auto x = normal({9, 32}, 1, 100.0).to(type).set_requires_grad(true),
               w = normal({16, 32}, 2, 30.0).to(type);
    const auto out = ops::route(x, w, std::nullopt, {});
    EXPECT_GT(out.logits.abs().max().item<double>(), 1e4);
    EXPECT_TRUE(close(out.probs, out.logits.to(at::kDouble).softmax(1), kFp32));
    out.probs.square().sum().backward();
    EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
  }
}

TEST(Route, RejectsInvalidArguments) {
  const auto x = at::zeros({4, 32}), w = at::zeros({16, 32}), h = at::zeros({4, 24}), s = at::zeros({4, 1});
  EXPECT_EQ(error_of([&] { ops::route(x, at::zeros({16, 48}), std::nullopt, {}); }),
            "route: weight must be [E, D+M*E] = [16, 32], got [16, 48]");
  EXPECT_EQ(error_of([&] { ops::route(x, w, ops::VisibleHistory{at::zeros({4, 16}), s}, {}); }),
            "route: weight must be [E, D+M*E] = [16, 48], got [16, 32]");
  EXPECT_EQ(error_of([&] { ops::route(x, at::zeros({16, 56}), ops::VisibleHistory{h, s}, {}); }),
            "route: history must be [T, M*E] with T = 4, E = 16, got [4, 24]");
  EXPECT_EQ(
      error_of([&] { ops::route(x, at::zeros({16, 48}), ops::VisibleHistory{at::zeros({5, 16}), s}, {}); }),
      "route: history must be [T, M*E] with T = 4, E = 16, got [5, 16]");
  const ops::VisibleHistory unsummed{at::zeros({4, 16}), at::zeros({4, 2})};
  EXPECT_EQ(error_of([&] { ops::route(x, at::zeros({16, 48}), unsummed, {}); }),
            "route: sumsq must be [T, M] = [4, 1], got [4, 2]");
  EXPECT_EQ(error_of([&] { ops::route(x, w, std::nullopt, {at::zeros({4, 8}), at::zeros({4})}); }),
            "route: a slot must be [T, E] = [4, 16] with sums [T], got [4, 8]");
  EXPECT_EQ(error_of([&] { ops::route(x, w.to(at::kDouble), std::nullopt, {}); }),
            "route: x is Float, weight is Double");
}

}  // namespace route_test
}  // namespace hero::test
