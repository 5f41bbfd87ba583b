// RMSNorm, SwiGLU, rotary embedding, and fused RMSNorm and rotary embedding, against the fp64 references.
#include "cuda/run.h"
#include "ops/cases.h"
#include "ops/cuda/kernels/norm_rope.cuh"
#include "ops/cuda/kernels/rms_norm.cuh"
#include "ops/cuda/kernels/rope.cuh"
#include "ops/cuda/kernels/swiglu.cuh"
#include "ops/random_cases.h"
#include "ops/reference.h"

namespace hero::test {
namespace rows_kernels_test {

using namespace ops::cuda;

Tolerance once(at::ScalarType type) { return type == at::kFloat ? kFp32 : kRoundedOnce; }

at::Tensor nan_filled(at::IntArrayRef sizes, at::ScalarType type) {
  return at::full(sizes, NAN, at::TensorOptions(type));
}

template <typename T, int n>
void check_norm(const RowsCase& c, at::ScalarType type) {
  const int64_t rows = c.tokens, d = c.width, strip = 64, strips = (rows + strip - 1) / strip;
  const auto x = normal({rows, d}, 1).to(type), w = normal({d}, 2).to(type),
             dy = normal({rows, d}, 3).to(type), addend = normal({rows, d}, 4).to(type);
  const double eps = 1e-5;
  at::Tensor y = nan_filled({rows, d}, type), dx = nan_filled({rows, d}, type),
             sum = nan_filled({rows, d}, type), rstd = nan_filled({rows}, at::kFloat),
             partial = nan_filled({strips, d}, at::kFloat), dw = nan_filled({d}, at::kFloat);
  RmsNormParams<T> params{.rows = rows,
                          .d = d,
                          .x = x.const_data_ptr<T>(),
                          .w = w.const_data_ptr<T>(),
                          .dy = dy.const_data_ptr<T>(),
                          .addend = addend.const_data_ptr<T>(),
                          .eps = static_cast<float>(eps),
                          .rstd = rstd.data_ptr<float>(),
                          .sum = sum.data_ptr<T>(),
                          .out = y.data_ptr<T>()};
  const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
  launch({sum, y, rstd}, norm_forward<n, T>, blocks(rows, kNormWarps), {kWarpSize, kNormWarps}, params);
  EXPECT_TRUE(same(sum, x + addend));
  const auto [summed_y, summed_rstd] = ops::rms_norm_forward_reference(wide(sum), wide(w), eps);
  EXPECT_TRUE(close(y, summed_y, once(type)));
  EXPECT_TRUE(close(rstd, summed_rstd, kFp32));

  const auto [want_y, want_rstd] = ops::rms_norm_forward_reference(wide(x), wide(w), eps);
  params.addend = nullptr;
  launch({y, rstd}, norm_forward<n, T>, blocks(rows, kNormWarps), {kWarpSize, kNormWarps}, params);
  EXPECT_TRUE(close(y, want_y, once(type)));
  EXPECT_TRUE(close(rstd, want_rstd, kFp32));

  params.out = dx.data_ptr<T>();
  at::Tensor want_dw;
  for (const bool added : {true, false}) {
    at::Tensor want_dx;
    std::tie(want_dx, want_dw) = ops::rms_norm_backward_reference(
        wide(dy), wide(x), wide(w), want_rstd, added ? std::optional(wide(addend)) : std::nullopt);
    params.addend = added ? addend.const_data_ptr<T>() : nullptr;
    launch({dx}, norm_backward<n, T>, blocks(rows, kNormWarps), {kWarpSize, kNormWarps}, params);
    EXPECT_TRUE(close(dx, want_dx, once(type)));
  }
  constexpr int columns = n == 1 ? 1 : kStripColumns;
  launch({partial}, norm_weight_strips<columns, T>, blocks(d, kWarpSize * columns, strips),
         {kWarpSize, kStripWarps}, rows, d, strip, params.dy, params.x, params.rstd,
         partial.data_ptr<float>());
  launch({dw}, add_strips, blocks(d, kWarpSize), {kWarpSize, kStripWarps}, strips, d,
         partial.const_data_ptr<float>(), dw.data_ptr<float>());
  EXPECT_TRUE(close(dw, want_dw, kFp32));
}

TEST(CudaRows, RmsNorm) {
  for (const auto& c : all_cases(kRmsNormCases)) {
    if (c.timed) continue;
    SCOPED_TRACE(::testing::Message() << "T " << c.tokens << " D " << c.width);
    for_types(c.width, [&]<typename T, int n>(at::ScalarType type) { check_norm<T, n>(c, type); });
  }
}

// The last `unused` rows are NaN and must give zeros.
template <typename T, int n>
void check_swiglu(const RowsCase& c, at::ScalarType type, int64_t unused) {
  const int64_t rows = c.tokens, f = c.width / 2;
  const auto gate_up = normal({rows, 2 * f}, 1, 3.0).to(type), dy = normal({rows, f}, 2).to(type);
  const auto used = at::full({1}, rows - unused, at::kLong);
  const auto want_y = ops::swiglu_forward_reference(gate_up.to(at::kDouble)),
             want_dgate_up = ops::swiglu_backward_reference(dy.to(at::kDouble), gate_up.to(at::kDouble));
  for (const auto& t : {gate_up, dy}) t.slice(0, rows - unused).fill_(NAN);
  for (const auto& t : {want_y, want_dgate_up}) t.slice(0, rows - unused).zero_();
  at::Tensor y = nan_filled({rows, f}, type), again = nan_filled({rows, f}, type),
             dgate_up = nan_filled({rows, 2 * f}, type);
  SwigluParams<T> params{.rows = rows,
                         .f = f,
                         .gate_up = gate_up.const_data_ptr<T>(),
                         .used = unused ? used.const_data_ptr<int64_t>() : nullptr,
                         .dy = dy.const_data_ptr<T>(),
                         .y = y.data_ptr<T>(),
                         .dgate_up = dgate_up.data_ptr<T>()};
  const auto grid = blocks(rows * f / n, kSwigluThreads);
  launch({y}, swiglu_forward<n, T>, grid, {kSwigluThreads}, params);
  EXPECT_TRUE(close(y, want_y, once(type)));
  params.y = again.data_ptr<T>();
  launch({again, dgate_up}, swiglu_backward<n, T>, grid, {kSwigluThreads}, params);
  EXPECT_TRUE(same(again, y));
  EXPECT_TRUE(close(dgate_up, want_dgate_up, once(type)));
  params.y = nullptr;
  const auto before = dgate_up.clone();
  launch({dgate_up}, swiglu_backward<n, T>, grid, {kSwigluThreads}, params);
  EXPECT_TRUE(same(dgate_up, before));
}

TEST(CudaRows, Swiglu) {
  for (const auto& c : all_cases(kSwigluCases)) {
    if (c.timed) continue;
    SCOPED_TRACE(::testing::Message() << "T " << c.tokens << " 2F " << c.width);
    for (const int64_t unused : {int64_t{0}, c.tokens / 3, c.tokens}) {
      for_types(c.width / 2,
                [&]<typename T, int n>(at::ScalarType type) { check_swiglu<T, n>(c, type, unused); });
    }
  }
}

TEST(CudaRows, SwigluStaysFiniteWhenGateSaturates) {
  const auto gate = at::tensor({-1e4f, -88.0f, -87.0f, 0.0f, 88.0f, 1e4f}, at::kFloat);
  const auto gate_up = at::cat({gate, at::ones_like(gate)}), dy = at::ones_like(gate);
  at::Tensor y = nan_filled({6}, at::kFloat), dgate_up = nan_filled({12}, at::kFloat);
  const SwigluParams<float> params{.rows = 1,
                                   .f = 6,
                                   .gate_up = gate_up.const_data_ptr<float>(),
                                   .dy = dy.const_data_ptr<float>(),
                                   .y = y.data_ptr<float>(),
                                   .dgate_up = dgate_up.data_ptr<float>()};
  launch({y, dgate_up}, swiglu_backward<1, float>, {1}, {kSwigluThreads}, params);
  EXPECT_TRUE(close(y, at::silu(gate.to(at::kDouble)), {1e-6, 1e-9}));
  EXPECT_TRUE(dgate_up.isfinite().all().item<bool>());
}

// x is a column range of a wider tensor, starting at column `before`.
template <typename T, int n, bool interleaved>
void check_rope(const RopeCase& c, at::ScalarType type, int64_t before) {
  const int64_t half = c.width / 2;
  const auto wider = normal({c.batch, c.positions, c.heads, before + c.width}, 1).to(type);
  const auto x = wider.slice(-1, before);
  const auto cos = normal({c.positions, half}, 2).to(at::kFloat),
             sin = normal({c.positions, half}, 3).to(at::kFloat);
  for (const bool inverse : {false, true}) {
    at::Tensor y = nan_filled(x.sizes(), type);
    const RopeParams<T> params{.batch = c.batch,
                               .positions = c.positions,
                               .heads = c.heads,
                               .half = half,
                               .ld_batch = x.stride(0),
                               .ld_position = x.stride(1),
                               .ld_head = x.stride(2),
                               .x = x.const_data_ptr<T>(),
                               .cos = cos.const_data_ptr<float>(),
                               .sin = sin.const_data_ptr<float>(),
                               .sign = inverse ? -1.0f : 1.0f,
                               .y = y.data_ptr<T>()};
    launch({y}, rotate<n, interleaved, T>, blocks(y.numel() / 2 / n, kRopeThreads), {kRopeThreads}, params);
    EXPECT_TRUE(close(y, ops::rope_reference(x.to(at::kDouble), cos, sin, interleaved, inverse),
                      type == at::kFloat ? kFp32 : Tolerance{1.01 * kBf16Rounding, 1e-5}));
  }
}

TEST(CudaRows, Rope) {
  for (const auto& c : all_cases(kRopeCases)) {
    if (c.timed) continue;
    SCOPED_TRACE(::testing::Message()
                 << "B " << c.batch << " S " << c.positions << " H " << c.heads << " R " << c.width);
    check_rope<c10::BFloat16, 1, true>(c, at::kBFloat16, 3);
    check_rope<c10::BFloat16, 1, false>(c, at::kBFloat16, 3);
    check_rope<float, 1, true>(c, at::kFloat, 3);
    check_rope<float, 1, false>(c, at::kFloat, 3);
    if (c.width % 8) continue;
    check_rope<c10::BFloat16, 4, true>(c, at::kBFloat16, 16);
    check_rope<c10::BFloat16, 4, false>(c, at::kBFloat16, 16);
    check_rope<float, 4, true>(c, at::kFloat, 16);
    check_rope<float, 4, false>(c, at::kFloat, 16);
  }
}

// x and dy are slices of wider tensors, starting at head `before` and 2 * `before`.
template <typename T, int n, int parts>
void check_norm_rope(const RopeCase& c, at::ScalarType type, int64_t before) {
  const int64_t half = c.width / 2, rows = c.batch * c.positions * c.heads, strip = 40;
  const int64_t strips = (rows + strip - 1) / strip;
  const auto slice = [&](int64_t first, uint64_t seed) {
    return normal({c.batch, c.positions, c.heads + first, c.width}, seed).to(type).slice(2, first);
  };
  const at::Tensor x = slice(before, 1), dy = slice(2 * before, 5), w = normal({c.width}, 4).to(type);
  const auto cos = normal({c.positions, half}, 2).to(at::kFloat),
             sin = normal({c.positions, half}, 3).to(at::kFloat);
  const double eps = 1e-5;
  at::Tensor y = nan_filled(x.sizes(), type), dx = nan_filled(x.sizes(), type),
             rstd = nan_filled({c.batch, c.positions, c.heads}, at::kFloat),
             partial = nan_filled({strips, c.width}, at::kFloat), dw = nan_filled({c.width}, at::kFloat);
  NormRopeParams<T> params{.rows = rows,
                           .positions = c.positions,
                           .heads = c.heads,
                           .half = half,
                           .ld_batch = x.stride(0),
                           .ld_position = x.stride(1),
                           .ld_head = x.stride(2),
                           .ld_dy_batch = dy.stride(0),
                           .ld_dy_position = dy.stride(1),
                           .ld_dy_head = dy.stride(2),
                           .x = x.const_data_ptr<T>(),
                           .w = w.const_data_ptr<T>(),
                           .dy = dy.const_data_ptr<T>(),
                           .cos = cos.const_data_ptr<float>(),
                           .sin = sin.const_data_ptr<float>(),
                           .eps = static_cast<float>(eps),
                           .rstd = rstd.data_ptr<float>(),
                           .out = y.data_ptr<T>()};
  const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
  const auto [want_y, want_rstd] =
      ops::norm_rope_forward_reference(wide(x), wide(w), eps, wide(cos), wide(sin));
  launch({y, rstd}, norm_rope_forward<n, parts, T>, blocks(rows, kHeadWarps), {kWarpSize, kHeadWarps},
         params);
  EXPECT_TRUE(close(y, want_y, once(type)));
  EXPECT_TRUE(close(rstd, want_rstd, kFp32));

  const auto [want_dx, want_dw] =
      ops::norm_rope_backward_reference(wide(dy), wide(x), wide(w), want_rstd, wide(cos), wide(sin));
  params.out = dx.data_ptr<T>();
  launch({dx, partial}, norm_rope_backward<n, parts, T>, blocks(strips, 1), {kWarpSize, kHeadWarps}, params,
         strip, partial.data_ptr<float>());
  launch({dw}, add_strips, blocks(c.width, kWarpSize), {kWarpSize, kStripWarps}, strips, c.width,
         partial.const_data_ptr<float>(), dw.data_ptr<float>());
  EXPECT_TRUE(close(dx, want_dx, once(type)));
  EXPECT_TRUE(close(dw, want_dw, kFp32));
}

TEST(CudaRows, NormRope) {
  std::vector<RopeCase> cases(std::begin(kRopeCases), std::end(kRopeCases));
  cases.push_back({1, 9, 2, 500});  // heads close to the maximum width of a warp
  for (const auto& c : cases) {
    if (c.timed) continue;
    SCOPED_TRACE(::testing::Message()
                 << "B " << c.batch << " S " << c.positions << " H " << c.heads << " R " << c.width);
    check_norm_rope<c10::BFloat16, 1, 8>(c, at::kBFloat16, 1);
    check_norm_rope<float, 1, 8>(c, at::kFloat, 0);
    if (c.width % 4) continue;
    check_norm_rope<c10::BFloat16, 2, 4>(c, at::kBFloat16, 1);
    check_norm_rope<c10::Half, 2, 4>(c, at::kHalf, 1);
    check_norm_rope<float, 2, 4>(c, at::kFloat, 1);
    if (c.width <= 128) check_norm_rope<c10::BFloat16, 2, 1>(c, at::kBFloat16, 0);
  }
}

}  // namespace rows_kernels_test
}  // namespace hero::test
