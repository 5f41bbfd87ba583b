#include "cuda/run.h"
#include "ops/assignments.h"
#include "ops/count.h"
#include "ops/cuda/kernels/dispatch.cuh"
#include "ops/random_cases.h"
#include "ops/reference.h"

namespace hero::test {
namespace dispatch_kernels_test {

using ops::cuda::kChunk, ops::cuda::kWarpSize, ops::cuda::kPlanWarps, ops::cuda::kRowWarps;

// Returns counts, offsets, token, row of the kernels.
std::vector<at::Tensor> run_plan(const at::Tensor& ids, int64_t experts) {
  const int64_t n = ids.numel(), chunks = (n + kChunk - 1) / kChunk;
  const auto filled = [](at::IntArrayRef sizes) { return at::full(sizes, -77, at::kLong); };
  auto ranks = at::full({n}, -77, at::kInt), before = filled({experts, chunks});
  std::vector<at::Tensor> out = {filled({experts}), filled({experts + 1}), filled({n}), filled(ids.sizes())};
  const ops::cuda::PlanParams params{.assignments = n,
                                     .k = ids.size(1),
                                     .experts = experts,
                                     .chunks = chunks,
                                     .ids = ids.const_data_ptr<int64_t>(),
                                     .ranks = ranks.data_ptr<int>(),
                                     .before = before.data_ptr<int64_t>(),
                                     .counts = out[0].data_ptr<int64_t>(),
                                     .offsets = out[1].data_ptr<int64_t>(),
                                     .token = out[2].data_ptr<int64_t>(),
                                     .row = out[3].data_ptr<int64_t>()};
  launch({ranks, before}, ops::cuda::rank_in_chunks, blocks(chunks, kPlanWarps), {kWarpSize, kPlanWarps},
         params);
  launch({before, out[0], out[1]}, ops::cuda::scan_chunks, {1}, {kWarpSize, ops::cuda::kScanWarps}, params);
  launch({out[2], out[3]}, ops::cuda::place_assignments, blocks(n, 256), {256}, params);
  return out;
}

// Compares with the reference plan, after which the kernels add padding rows of token 0.
void check_plan(const at::Tensor& ids, int64_t experts) {
  const auto got = run_plan(ids, experts);
  const auto [counts, offsets, token, row] = ops::plan_reference(ids, experts);
  EXPECT_TRUE(same(got[0], counts));
  EXPECT_TRUE(same(got[1], offsets));
  EXPECT_TRUE(same(got[2].slice(0, 0, token.size(0)), token));
  EXPECT_EQ(got[2].slice(0, token.size(0)).ne(0).sum().item<int64_t>(), 0);
  EXPECT_TRUE(same(got[3], row));
}

TEST(CudaDispatch, PlanIsAStableSort) {
  for (const auto& c : all_cases(kExpertsCases)) {
    SCOPED_TRACE(name(c));
    check_plan(ids_of(c), c.experts);
  }
  check_plan(integers(-1, 5, {700, 3}, 3), 5);
  check_plan(integers(-1, 1000, {300, 2}, 4), 1000);
  check_plan(integers(0, 1, {1500, 1}, 5), 1);
  for (const int64_t n : {kChunk - 1, kChunk, kChunk + 1, kChunk * 33})
    check_plan(integers(-1, 3, {n, 1}, 6), 3);
}

TEST(CudaDispatch, CountsPerGroup) {
  for (const int64_t groups : {1, 3}) {
    for (const int64_t n : {1, 31, 300, 513}) {
      for (const int64_t experts : {1, 5, 2000}) {
        const auto ids = integers(-1, experts, {groups, n}, 7);
        const auto counts = at::zeros({groups, experts}, at::kLong);
        launch({counts}, ops::cuda::count_ids, blocks(ids.numel(), 256), {256}, ids.numel(), n, experts,
               ids.const_data_ptr<int64_t>(),
               reinterpret_cast<unsigned long long*>(counts.data_ptr<int64_t>()));
        EXPECT_TRUE(same(counts, ops::count_assignments_reference(ids, experts))) << groups << " " << n;
      }
    }
  }
  for (const int64_t id : {int64_t{4}, int64_t{-2}, int64_t{1} << 32}) {
    const auto ids = at::full({1, 1}, id, at::kLong), counts = at::zeros({1, 4}, at::kLong);
    EXPECT_NE(emulate::launch(ops::cuda::count_ids, {1}, {32}, int64_t{1}, int64_t{1}, int64_t{4},
                              ids.const_data_ptr<int64_t>(),
                              reinterpret_cast<unsigned long long*>(counts.data_ptr<int64_t>())),
              "");
  }
}

TEST(CudaDispatch, PlanRejectsInvalidIds) {
  for (const int64_t id : {int64_t{4}, int64_t{-2}, int64_t{1} << 32}) {
    auto ids = at::full({1, 1}, id, at::kLong), ranks = at::zeros({1}, at::kInt),
         before = at::zeros({4, 1}, at::kLong);
    const ops::cuda::PlanParams params{.assignments = 1,
                                       .k = 1,
                                       .experts = 4,
                                       .chunks = 1,
                                       .ids = ids.const_data_ptr<int64_t>(),
                                       .ranks = ranks.data_ptr<int>(),
                                       .before = before.data_ptr<int64_t>()};
    EXPECT_NE(emulate::launch(ops::cuda::rank_in_chunks, {1}, {kWarpSize, kPlanWarps}, params), "");
  }
}

template <typename T, int n>
void check_rows(const ExpertsCase& c, at::ScalarType type) {
  const auto [counts, offsets, kept, row_of] = ops::plan_reference(ids_of(c), c.experts);
  const int64_t rows = c.tokens * c.k, d = c.width, used = kept.size(0);
  const auto token = at::constant_pad_nd(kept, {0, rows - used}), row = row_of;
  const auto x = normal({c.tokens, d}, 1).to(type), y = normal({rows, d}, 2).to(type),
             base = normal({c.tokens, d}, 4).to(type);
  const auto weights = normal({c.tokens, c.k}, 3).to(at::kFloat);
  const auto nan_filled = [&](at::IntArrayRef sizes) { return at::full(sizes, NAN, x.options()); };
  at::Tensor gathered = nan_filled({rows, d});
  launch({gathered}, ops::cuda::gather<ops::cuda::Vector<T, n>>, blocks(rows, kRowWarps),
         {kWarpSize, kRowWarps}, rows, d / n,
         reinterpret_cast<const ops::cuda::Vector<T, n>*>(x.const_data_ptr<T>()),
         token.const_data_ptr<int64_t>(), reinterpret_cast<ops::cuda::Vector<T, n>*>(gathered.data_ptr<T>()));
  EXPECT_TRUE(same(gathered, x.index_select(0, token)));

  for (const auto& [weighted, based] : {std::pair(true, true), {true, false}, {false, false}}) {
    at::Tensor sum = nan_filled({c.tokens, d});
    // Padding rows are NaN, so reading them is detected.
    auto in = y.clone();
    in.slice(0, used).fill_(NAN);
    launch({sum}, ops::cuda::sum_rows<n, T>, blocks(c.tokens, kRowWarps), {kWarpSize, kRowWarps}, c.tokens,
           c.k, d, static_cast<const T*>(in.const_data_ptr<T>()),
           weighted ? weights.const_data_ptr<float>() : nullptr, row.const_data_ptr<int64_t>(),
           static_cast<const T*>(based ? base.const_data_ptr<T>() : nullptr), sum.data_ptr<T>());
    const auto want =
        ops::sum_rows_reference(y.to(at::kDouble), weighted ? std::optional(weights) : std::nullopt, row,
                                based ? std::optional(base.to(at::kDouble)) : std::nullopt);
    EXPECT_TRUE(close(sum, want, type == at::kFloat ? kFp32 : kRoundedOnce));
  }

  at::Tensor dx = nan_filled({rows, d}), dweights = at::zeros_like(weights);
  launch({dx, dweights}, ops::cuda::combine_gradient<n, T>, blocks(rows, kRowWarps), {kWarpSize, kRowWarps},
         ops::cuda::CombineGradient<T>{.rows = rows,
                                       .k = c.k,
                                       .d = d,
                                       .dy = x.const_data_ptr<T>(),
                                       .y = y.const_data_ptr<T>(),
                                       .weights = weights.const_data_ptr<float>(),
                                       .row = row.const_data_ptr<int64_t>(),
                                       .token = token.const_data_ptr<int64_t>(),
                                       .dx = dx.data_ptr<T>(),
                                       .dweights = dweights.data_ptr<float>()});
  const auto [want_dx, want_dweights] =
      ops::combine_backward_reference(x.to(at::kDouble), y.to(at::kDouble), weights, row, token);
  EXPECT_TRUE(close(dx, want_dx, type == at::kFloat ? kFp32 : kRoundedOnce));
  EXPECT_TRUE(same(dx.slice(0, used), at::zeros_like(dx.slice(0, used))));
  EXPECT_TRUE(close(dweights, want_dweights, kFp32));
  EXPECT_TRUE(same(dweights.masked_select(row.lt(0)), at::zeros({row.lt(0).sum().item<int64_t>()})));
}

TEST(CudaDispatch, GatherSumAndCombine) {
  for (const auto& c : all_cases(kExpertsCases)) {
    if (c.timed) continue;
    SCOPED_TRACE(name(c));
    for_types(c.width, [&]<typename T, int n>(at::ScalarType type) { check_rows<T, n>(c, type); });
  }
  const ExpertsCase odd{13, 3, 4, 37, 8, Load::kDropped};
  check_rows<c10::Half, 1>(odd, at::kHalf);
  for_types(odd.width, [&]<typename T, int n>(at::ScalarType type) { check_rows<T, n>(odd, type); });
}

}  // namespace dispatch_kernels_test
}  // namespace hero::test
