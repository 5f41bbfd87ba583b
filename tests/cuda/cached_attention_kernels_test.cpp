// Attention over KV caches against the fp64 reference.
#include "cuda/run.h"
#include "ops/cases.h"
#include "ops/cuda/kernels/cached_attention.cuh"
#include "ops/random_cases.h"
#include "ops/reference.h"

namespace hero::test {
namespace cached_attention_kernels_test {

using namespace ops::cuda;

constexpr double kScale = 0.31;

// q is a column range of wider rows; caches are longer than their contents.
template <typename T, int n>
void check_attention(const CachedAttentionCase& c, at::ScalarType type) {
  std::vector<at::Tensor> keys, values, wide_keys, wide_values;
  std::vector<int64_t> lengths, counts;
  CachedAttentionParams<T> params{};
  int64_t rows = 0;
  for (const auto& [held, count] : c.sequences) {
    const uint64_t seed = 10 + 2 * counts.size();
    const auto memory = normal({held + 3, c.kv_heads, c.qk_width}, seed).to(type);
    memory.slice(0, held).fill_(NAN);
    keys.push_back(memory);
    values.push_back(c.values_in_keys ? memory : normal({held, c.kv_heads, c.v_width}, seed + 1).to(type));
    params.sequences[counts.size()] = {.keys = keys.back().template const_data_ptr<T>(),
                                       .values = values.back().template const_data_ptr<T>(),
                                       .ld_key = keys.back().stride(0),
                                       .ld_key_head = keys.back().stride(1),
                                       .ld_value = values.back().stride(0),
                                       .ld_value_head = values.back().stride(1),
                                       .groups = c.heads / c.kv_heads,
                                       .positions = held,
                                       .count = count,
                                       .first = rows};
    lengths.push_back(held);
    counts.push_back(count);
    wide_keys.push_back(keys.back().to(at::kDouble));
    wide_values.push_back(values.back().to(at::kDouble));
    rows += count;
  }
  const auto q = normal({rows, c.heads, c.qk_width + 5}, 1).to(type).slice(2, 5);
  at::Tensor out = at::full({rows, c.heads, c.v_width}, NAN, at::TensorOptions(type));
  params.qk = c.qk_width;
  params.v = c.v_width;
  params.q = q.const_data_ptr<T>();
  params.ld_q = q.stride(0);
  params.ld_q_head = q.stride(1);
  params.scale = kScale;
  params.out = out.data_ptr<T>();
  launch({out}, cached_attention_kernel<n, T>, blocks(rows, 1, c.heads), {kWarpSize, kAttentionWarps},
         params);
  const auto want = ops::cached_attention_reference(q.to(at::kDouble), wide_keys, wide_values, lengths,
                                                    counts, c.v_width, kScale);
  EXPECT_TRUE(close(out, want, type == at::kFloat ? kFp32 : kRoundedOnce));
}

TEST(CudaCachedAttention, Values) {
  for (const auto& c : all_cases(cached_attention_cases())) {
    SCOPED_TRACE(::testing::Message() << "H " << c.heads << "/" << c.kv_heads << " Q " << c.qk_width << " P "
                                      << c.v_width << ", " << c.sequences.size() << " sequences");
    check_attention<c10::BFloat16, 1>(c, at::kBFloat16);
    check_attention<float, 1>(c, at::kFloat);
    if (c.qk_width % 8 || c.v_width % 8) continue;
    check_attention<c10::BFloat16, 8>(c, at::kBFloat16);
    check_attention<c10::Half, 8>(c, at::kHalf);
    check_attention<float, 4>(c, at::kFloat);
  }
}

// Scores far from zero, the highest in a later chunk.
TEST(CudaCachedAttention, SoftmaxOverChunksStaysFinite) {
  const int64_t held = 3 * kAttentionThreads - 7;
  auto keys = at::full({held, 1, 4}, -300.0f);
  keys[held - 1].fill_(300.0f);
  const auto values = normal({held, 1, 4}, 1).to(at::kFloat), q = at::full({1, 1, 4}, 100.0f);
  at::Tensor out = at::full({1, 1, 4}, NAN);
  CachedAttentionParams<float> params{.qk = 4,
                                      .v = 4,
                                      .q = q.const_data_ptr<float>(),
                                      .ld_q = 4,
                                      .ld_q_head = 4,
                                      .scale = 1.0f,
                                      .out = out.data_ptr<float>()};
  params.sequences[0] = {
      keys.const_data_ptr<float>(), values.const_data_ptr<float>(), 4, 4, 4, 4, 1, held, 1, 0};
  launch({out}, cached_attention_kernel<4, float>, {1, 1}, {kWarpSize, kAttentionWarps}, params);
  EXPECT_TRUE(same(out[0], values[held - 1]));
}

}  // namespace cached_attention_kernels_test
}  // namespace hero::test
