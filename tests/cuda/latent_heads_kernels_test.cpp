// Heads of latent attention and their gradients, against the fp64 reference.
#include "cuda/run.h"
#include "ops/cases.h"
#include "ops/cuda/kernels/latent_heads.cuh"
#include "ops/random_cases.h"
#include "ops/reference.h"

namespace hero::test {
namespace latent_heads_kernels_test {

using namespace ops::cuda;

at::Tensor nan_filled(at::IntArrayRef sizes, at::ScalarType type) {
  return at::full(sizes, NAN, at::TensorOptions(type));
}

at::Tensor wide(const at::Tensor& x) { return x.to(at::kDouble); }

Tolerance once(at::ScalarType type) { return type == at::kFloat ? kFp32 : kRoundedOnce; }

LatentShape shape_of(const LatentHeadsCase& c, const at::Tensor& cos, const at::Tensor& sin) {
  return {.heads = static_cast<int>(c.heads),
          .nope = static_cast<int>(c.nope),
          .half = static_cast<int>(c.rope / 2),
          .v_width = static_cast<int>(c.v_width),
          .positions = static_cast<unsigned>(cos.size(0)),
          .cos = cos.const_data_ptr<float>(),
          .sin = sin.const_data_ptr<float>()};
}

// The key is a column range of a wider tensor, starting at column `before`.
template <typename T, int n, int pairs, bool interleaved>
void check_forward(const LatentHeadsCase& c, at::ScalarType type, const at::Tensor& cos,
                   const at::Tensor& sin, int64_t before) {
  const int64_t width = c.nope + c.rope;
  const at::Tensor queries = normal({c.batch, c.positions, c.heads, width}, 1).to(type),
                   kv = normal({c.batch, c.positions, c.heads, c.nope + c.v_width}, 2).to(type),
                   key = normal({c.batch, c.positions, before + c.rope}, 3).to(type).slice(2, before);
  at::Tensor q = nan_filled(queries.sizes(), type), k = nan_filled(queries.sizes(), type);
  const LatentForwardParams<T> params{.shape = shape_of(c, cos, sin),
                                      .ld_key = key.stride(1),
                                      .queries = queries.const_data_ptr<T>(),
                                      .kv = kv.const_data_ptr<T>(),
                                      .key = key.const_data_ptr<T>(),
                                      .q = q.data_ptr<T>(),
                                      .k = k.data_ptr<T>()};
  launch({q, k}, latent_heads_forward<n, pairs, interleaved, T>, blocks(c.batch * c.positions, 1),
         {kLatentThreads}, params);
  const auto [want_q, want_k] = ops::latent_heads_forward_reference(wide(queries), wide(kv), wide(key),
                                                                    wide(cos), wide(sin), interleaved);
  EXPECT_TRUE(close(q, want_q, once(type)));
  EXPECT_TRUE(close(k, want_k, once(type)));
  EXPECT_TRUE(same(q.slice(3, 0, c.nope), queries.slice(3, 0, c.nope)));
  EXPECT_TRUE(same(k.slice(3, 0, c.nope), kv.slice(3, 0, c.nope)));
}

template <typename T, int n, int pairs, bool interleaved>
void check_backward(const LatentHeadsCase& c, at::ScalarType type, const at::Tensor& cos,
                    const at::Tensor& sin) {
  const auto rows = [&](int64_t columns, uint64_t seed) {
    return normal({c.batch, c.positions, c.heads, columns}, seed).to(type);
  };
  const at::Tensor dq = rows(c.nope + c.rope, 6), dk = rows(c.nope + c.rope, 7), dv = rows(c.v_width, 8);
  at::Tensor dqueries = nan_filled(dq.sizes(), type),
             dkv = nan_filled({c.batch, c.positions, c.heads, c.nope + c.v_width}, type),
             dkey = nan_filled({c.batch, c.positions, c.rope}, type);
  const LatentBackwardParams<T> params{.shape = shape_of(c, cos, sin),
                                       .dq = dq.const_data_ptr<T>(),
                                       .dk = dk.const_data_ptr<T>(),
                                       .dv = dv.const_data_ptr<T>(),
                                       .dqueries = dqueries.data_ptr<T>(),
                                       .dkv = dkv.data_ptr<T>(),
                                       .dkey = dkey.data_ptr<T>()};
  launch({dqueries, dkv, dkey}, latent_heads_backward<n, pairs, interleaved, T>,
         blocks(c.batch * c.positions, 1), {kLatentThreads + kWarpSize}, params);
  const auto [want_dqueries, want_dkv, want_dkey] =
      ops::latent_heads_backward_reference(wide(dq), wide(dk), wide(dv), wide(cos), wide(sin), interleaved);
  EXPECT_TRUE(close(dqueries, want_dqueries, once(type)));
  EXPECT_TRUE(same(dkv, want_dkv.to(type)));
  EXPECT_TRUE(close(dkey, want_dkey, once(type)));
}

// Vectors of n elements and of `pairs` pairs, with tables of all tokens and of one sequence.
template <typename T, int n, int pairs>
void check_heads(const LatentHeadsCase& c, at::ScalarType type, int64_t before) {
  for (const int64_t rows : {c.positions, c.batch * c.positions}) {
    const auto cos = normal({rows, c.rope / 2}, 4).to(at::kFloat),
               sin = normal({rows, c.rope / 2}, 5).to(at::kFloat);
    check_forward<T, n, pairs, false>(c, type, cos, sin, before);
    check_forward<T, n, pairs, true>(c, type, cos, sin, before);
    check_backward<T, n, pairs, false>(c, type, cos, sin);
    check_backward<T, n, pairs, true>(c, type, cos, sin);
  }
}

TEST(CudaLatentHeads, ForwardAndBackward) {
  for (const auto& c : all_cases(kLatentHeadsCases)) {
    if (c.timed) continue;
    SCOPED_TRACE(::testing::Message() << "B " << c.batch << " S " << c.positions << " H " << c.heads << " N "
                                      << c.nope << " R " << c.rope << " P " << c.v_width);
    check_heads<c10::BFloat16, 1, 1>(c, at::kBFloat16, 3);
    check_heads<c10::Half, 1, 1>(c, at::kHalf, 3);
    check_heads<float, 1, 1>(c, at::kFloat, 3);
    if (c.nope % 8 || c.rope % 8 || c.v_width % 8) continue;
    check_heads<c10::BFloat16, 8, 4>(c, at::kBFloat16, 16);
    check_heads<c10::Half, 8, 4>(c, at::kHalf, 16);
    check_heads<float, 4, 4>(c, at::kFloat, 16);
  }
}

}  // namespace latent_heads_kernels_test
}  // namespace hero::test
