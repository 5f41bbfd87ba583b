#include "cuda/run.h"
#include "ops/cases.h"
#include "ops/cuda/kernels/route.cuh"
#include "ops/random_cases.h"
#include "ops/reference.h"

namespace hero::test {
namespace route_kernels_test {

using namespace ops::cuda;

template <typename T, int n>
void check(const RouteCase& c, at::ScalarType type) {
  const int64_t t = c.tokens, d = c.width, e = c.experts, m = c.visible, slots = c.slots;
  const double depth = 1.5, eps = 1e-6;
  const auto x = normal({t, d}, 1).to(type),
             w = normal({e, d + m * e}, 2, 1 / std::sqrt(static_cast<double>(d))).to(type);
  auto buffer = normal({t, std::max<int64_t>(slots, 1) * e}, 3, 0.1).softmax(1).to(type);
  auto squares = buffer.to(at::kFloat).view({t, -1, e}).square().sum(2);
  const auto wide = [](const at::Tensor& u) { return u.to(at::kDouble); };
  const int64_t own = slots - 1, first = own - m;  // own slot, first visible layer
  const auto history = buffer.slice(1, first * e, own * e), sums = squares.slice(1, first, own);
  const auto some = [&](const at::Tensor& u) { return m ? std::optional(u) : std::nullopt; };
  // GEMM results in fp32, as from cuBLAS.
  const auto gemm = [&](const at::Tensor& a, const at::Tensor& b) -> at::Tensor {
    return at::mm(wide(a), wide(b).t()).to(at::kFloat);
  };
  at::Tensor logits = gemm(x, w.slice(1, 0, d));
  const at::Tensor residual = m ? gemm(history, w.slice(1, d)) : at::Tensor();
  at::Tensor probs = at::full({t, e}, NAN, at::kFloat),
             stats = at::full({t, ops::kRouteStats}, NAN, at::kFloat);
  const auto [want_logits, want_probs, want_stats] = ops::route_forward_reference(
      wide(x), wide(w), some(wide(history)), some(sums), depth, eps, c.scale, std::nullopt, std::nullopt);
  auto want_buffer = buffer.clone(), want_squares = squares.clone();
  const RouteParams<T> params{.rows = t,
                              .d = d,
                              .experts = e,
                              .visible = m,
                              .x = x.const_data_ptr<T>(),
                              .logits = logits.data_ptr<float>(),
                              .residual = m ? residual.const_data_ptr<float>() : nullptr,
                              .sumsq = m ? sums.const_data_ptr<float>() : nullptr,
                              .ld_sumsq = m ? sums.stride(0) : 0,
                              .depth_factor = static_cast<float>(depth),
                              .eps = static_cast<float>(eps),
                              .scale = c.scale,
                              .probs = probs.data_ptr<float>(),
                              .stats = stats.data_ptr<float>(),
                              .slot = slots ? buffer.slice(1, own * e).data_ptr<T>() : nullptr,
                              .ld_slot = buffer.stride(0),
                              .slot_sumsq = slots ? squares.slice(1, own).data_ptr<float>() : nullptr,
                              .ld_slot_sumsq = squares.stride(0)};
  launch({logits, probs, stats, buffer, squares}, route_rows<n, T>, blocks(t, kRouteWarps),
         {kWarpSize, kRouteWarps}, params);
  EXPECT_TRUE(close(logits, want_logits, kFp32));
  EXPECT_TRUE(close(probs, want_probs, kFp32));
  ASSERT_EQ(want_stats.size(1), ops::kRouteStats);
  for (int64_t column = 0; column < ops::kRouteStats; ++column)
    EXPECT_TRUE(close(stats.select(1, column), want_stats.select(1, column), kFp32))
        << ops::kRouteStatNames[column];
  if (slots) {  // only the slot changes: rounded probabilities and their sum of squares
    want_buffer.slice(1, own * e).copy_(probs);
    want_squares.select(1, own).copy_(want_buffer.slice(1, own * e).to(at::kDouble).square().sum(1));
  }
  EXPECT_TRUE(same(buffer, want_buffer));
  EXPECT_TRUE(close(squares, want_squares, kFp32));

  const auto dlogits = normal({t, e}, 4).to(at::kFloat), dprobs = normal({t, e}, 5).to(at::kFloat);
  at::Tensor dz = at::full({t, e}, NAN, x.options()), scaled = at::full({t, e}, NAN, x.options());
  const auto written = m ? std::vector{dz, scaled} : std::vector{dz};
  launch(written, logit_gradient<T>, blocks(t, kRouteWarps), {kWarpSize, kRouteWarps}, t, e,
         dlogits.const_data_ptr<float>(), dprobs.const_data_ptr<float>(), probs.const_data_ptr<float>(),
         stats.const_data_ptr<float>(), dz.data_ptr<T>(), m ? scaled.data_ptr<T>() : nullptr);
  const auto p = wide(want_probs), dp = wide(dprobs);
  const auto want_dz = wide(dlogits) + p * (dp - (dp * p).sum(1, true));
  const auto once = type == at::kFloat ? kFp32 : kRoundedOnce;
  EXPECT_TRUE(close(dz, want_dz, once));
  if (m) {
    EXPECT_TRUE(close(scaled, want_dz * want_stats.narrow(1, ops::kRho, 1), once));
  }
}

TEST(CudaRoute, Epilogue) {
  for (const auto& c : all_cases(kRouteCases)) {
    if (c.timed) continue;
    SCOPED_TRACE(::testing::Message()
                 << "T " << c.tokens << " D " << c.width << " E " << c.experts << " M " << c.visible);
    for_types(c.width, [&]<typename T, int n>(at::ScalarType type) { check<T, n>(c, type); });
  }
  check<c10::BFloat16, 1>({5, 37, 13, 2, 4}, at::kBFloat16);
  check<c10::Half, 1>({5, 37, 13, 0, 1}, at::kHalf);
}

}  // namespace route_kernels_test
}  // namespace hero::test
