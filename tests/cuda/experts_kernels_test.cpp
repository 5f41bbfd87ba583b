// Products of the experts in their three forms, on emulated tensor cores and without.
#include "cuda/emulate_mma.h"
#include "cuda/run.h"
#include "ops/assignments.h"
#include "ops/cuda/kernels/grouped_mma.cuh"
#include "ops/cuda/kernels/grouped_plain.cuh"
#include "ops/plain.h"

namespace hero::test {
namespace {

using namespace ops::cuda;

struct Operands {
  at::Tensor a, b, c, want;  // c: the result's place, NaN
};

// Rows that no expert has hold NaN in a and, for kOfWeights, in b; `want` has zeros there.
Operands operands_of(Grouped form, const at::Tensor& offsets, int64_t rows, int64_t m, int64_t n, int64_t k,
                     at::ScalarType type) {
  const int64_t experts = offsets.size(0) - 1;
  const auto* o = offsets.const_data_ptr<int64_t>();
  const bool weights = form == Grouped::kOfWeights;
  Operands it;
  it.a = normal({rows, weights ? m : k}, 1).to(type);
  it.b = (weights                    ? normal({rows, n}, 2)
          : form == Grouped::kOfRows ? normal({experts, k, n}, 2)
                                     : normal({experts, n, k}, 2))
             .to(type);
  it.want = weights ? at::zeros({experts, m, n}, at::kDouble) : at::zeros({rows, n}, at::kDouble);
  for (int64_t e = 0; e < experts; ++e) {
    const auto a = it.a.slice(0, o[e], o[e + 1]).to(at::kDouble);
    if (weights) {
      it.want[e] = at::mm(a.t(), it.b.slice(0, o[e], o[e + 1]).to(at::kDouble));
    } else {
      const auto b = it.b[e].to(at::kDouble);
      it.want.slice(0, o[e], o[e + 1]).copy_(at::mm(a, form == Grouped::kOfRows ? b : b.t()));
    }
  }
  it.a.slice(0, o[experts]).fill_(NAN);
  if (weights) it.b.slice(0, o[experts]).fill_(NAN);
  it.c = at::full(it.want.sizes(), NAN, at::TensorOptions(weights ? at::kFloat : type));
  return it;
}

template <Grouped form, typename T, typename Out, bool tensor_cores>
void check(const at::Tensor& offsets, int64_t rows, int64_t m, int64_t n, int64_t k, at::ScalarType type) {
  const auto it = operands_of(form, offsets, rows, m, n, k, type);
  const int64_t experts = offsets.size(0) - 1;
  const GroupedWork<T, Out> work{.a = it.a.const_data_ptr<T>(),
                                 .b = it.b.const_data_ptr<T>(),
                                 .c = it.c.data_ptr<Out>(),
                                 .offsets = offsets.const_data_ptr<int64_t>(),
                                 .rows = rows,
                                 .experts = experts,
                                 .m = m,
                                 .n = n,
                                 .k = k};
  const int tile = tensor_cores ? kMmaTile : kPlainTile;
  const auto tiles = [&](int64_t size) { return static_cast<unsigned>((size + tile - 1) / tile); };
  const dim3 grid = form == Grouped::kOfWeights
                        ? dim3{tiles(m), tiles(n), static_cast<unsigned>(experts)}
                        : dim3{static_cast<unsigned>(row_tiles(rows, experts, tile)), tiles(n)};
  if constexpr (tensor_cores) {
    launch({it.c}, grouped_mma<form, T, Out>, grid, {kMmaThreads}, work);
  } else {
    launch({it.c}, grouped_plain<form, T, Out>, grid, {kPlainSide, kPlainSide}, work);
  }
  EXPECT_TRUE(close(it.c, it.want, it.c.scalar_type() == at::kFloat ? kFp32 : kRoundedOnce))
      << "form " << static_cast<int>(form) << ", " << type << (tensor_cores ? ", tensor cores" : "");
}

template <typename T, bool tensor_cores>
void check_forms(const ExpertsCase& c, at::ScalarType type) {
  const auto [counts, offsets, token, row] = ops::plan_plain(ids_of(c), c.experts);
  const int64_t rows = c.tokens * c.k, d = c.width, f = c.inner;
  check<Grouped::kOfRowsInnerLast, T, T, tensor_cores>(offsets, rows, 0, 2 * f, d, type);
  check<Grouped::kOfRows, T, T, tensor_cores>(offsets, rows, 0, f, d, type);
  check<Grouped::kOfWeights, T, float, tensor_cores>(offsets, rows, d, f, 0, type);
}

TEST(CudaExperts, ProductsOnTensorCores) {
  for (const auto& c : kExpertsCases) {
    if (c.timed) continue;
    SCOPED_TRACE(name(c));
    check_forms<c10::BFloat16, true>(c, at::kBFloat16);
  }
  // Tiles beside and behind one another, long sums, groups that begin anywhere.
  check_forms<c10::BFloat16, true>({301, 1, 2, 264, 136, Load::kEven}, at::kBFloat16);
  check_forms<c10::BFloat16, true>({70, 1, 40, 8, 8, Load::kSparse}, at::kBFloat16);
}

TEST(CudaExperts, ProductsWithoutTensorCores) {
  for (const auto& c : kExpertsCases) {
    if (c.timed) continue;
    SCOPED_TRACE(name(c));
    check_forms<float, false>(c, at::kFloat);
  }
  const ExpertsCase odd{70, 2, 5, 37, 19, Load::kDropped};
  check_forms<c10::BFloat16, false>(odd, at::kBFloat16);
  check_forms<c10::Half, false>(odd, at::kHalf);
  check_forms<float, false>(odd, at::kFloat);
}

TEST(CudaExperts, UnusedRowsAreCleared) {
  for (const int64_t used : {0, 3, 7}) {
    auto x = normal({7, 5}, 1).to(at::kFloat);
    const auto want = x.clone();
    want.slice(0, used).zero_();
    x.slice(0, used).fill_(NAN);
    const auto count = at::full({1}, used, at::kLong);
    launch({}, clear_unused_rows<float>, {2}, {8}, x.numel(), 5, count.const_data_ptr<int64_t>(),
           x.data_ptr<float>());
    EXPECT_TRUE(same(x, want));
  }
}

}  // namespace
}  // namespace hero::test
