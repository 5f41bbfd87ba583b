// Inference operators: attention over KV caches, per-head linear layers. No gradients.
#include "ops/cases.h"
#include "ops/compare.h"
#include "ops/ops.h"
#include "ops/random_cases.h"

namespace hero::test {
namespace cached_attention_test {

constexpr double kScale = 0.31;
constexpr Tolerance kOutput{2 * kBf16Rounding, 1e-4};

using CachedAttentionTest = DeviceTest;
HERO_ON_DEVICES(CachedAttentionTest);

// KV caches; rows beyond the cached positions are NaN.
ops::CachedSequences caches(const CachedAttentionCase& c, const at::TensorOptions& options) {
  ops::CachedSequences all;
  uint64_t seed = 10;
  const auto memory = [&](int64_t held, int64_t width) {
    auto rows = normal({held + 3, c.kv_heads, width}, ++seed).to(options);
    rows.slice(0, held).fill_(NAN);
    return rows;
  };
  for (const auto& [held, count] : c.sequences) {
    all.keys.push_back(memory(held, c.qk_width));
    all.values.push_back(c.values_in_keys ? all.keys.back() : memory(held, c.v_width));
    all.lengths.push_back(held);
    all.counts.push_back(count);
  }
  all.value_width = c.v_width;
  return all;
}

// Row by row over the visible positions, one softmax per head.
at::Tensor expected(const at::Tensor& q, const ops::CachedSequences& caches, int64_t heads) {
  std::vector<at::Tensor> rows;
  int64_t row = 0;
  for (size_t i = 0; i < caches.counts.size(); ++i) {
    const int64_t held = caches.lengths[i], groups = heads / caches.keys[i].size(1);
    for (int64_t n = 0; n < caches.counts[i]; ++n, ++row) {
      std::vector<at::Tensor> outs;
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t seen = held - caches.counts[i] + n + 1;
        const auto key = caches.keys[i].select(1, h / groups).slice(0, 0, seen).to(at::kDouble);
        const auto value = caches.values[i]
                               .select(1, h / groups)
                               .slice(0, 0, seen)
                               .slice(1, 0, caches.value_width)
                               .to(at::kDouble);
        const auto p = (key.mv(q[row][h].to(at::kDouble)) * kScale).softmax(0);
        outs.push_back(value.t().mv(p));
      }
      rows.push_back(at::stack(outs));
    }
  }
  return at::stack(rows);
}

TEST_P(CachedAttentionTest, Values) {
  for (const auto& c : all_cases(cached_attention_cases())) {
    SCOPED_TRACE(::testing::Message() << "H " << c.heads << "/" << c.kv_heads << " Q " << c.qk_width << " P "
                                      << c.v_width << ", " << c.sequences.size() << " sequences");
    const auto options = at::TensorOptions(type());
    auto held = caches(c, options);
    int64_t rows = 0;
    for (const auto& sequence : c.sequences) rows += sequence.second;
    const auto q = normal({rows, c.heads, c.qk_width}, 1).to(options);
    const auto want = expected(q, held, c.heads);
    for (auto* tensors : {&held.keys, &held.values}) {
      for (auto& t : *tensors) t = t.to(device());
    }
    const auto got = ops::cached_attention(q.to(device()), held, kScale);
    EXPECT_EQ(got.scalar_type(), type());
    EXPECT_TRUE(close(got.cpu().to(at::kDouble), want, tolerance(kOutput)));
  }
}

TEST(CachedAttention, RejectsInvalidArguments) {
  const auto q = at::zeros({2, 4, 8}), k = at::zeros({5, 2, 8});
  EXPECT_EQ(error_of([&] { ops::cached_attention(q, {{k}, {k}, {5}, {1}, 8}, 1.0); }),
            "cached_attention: counts must sum to T = 2, got 1");
  EXPECT_EQ(error_of([&] { ops::cached_attention(q, {{at::zeros({5, 3, 8})}, {k}, {5}, {2}, 8}, 1.0); }),
            "cached_attention: expected keys [5 or more, Hkv, 8], values [5 or more, Hkv, 8 or more], Hkv "
            "dividing 4 and 1 to 5 new positions, got [5, 3, 8], [5, 2, 8], 2");
  EXPECT_EQ(error_of([&] { ops::cached_attention(q, {{k}, {k}, {6}, {2}, 8}, 1.0); }),
            "cached_attention: expected keys [6 or more, Hkv, 8], values [6 or more, Hkv, 8 or more], Hkv "
            "dividing 4 and 1 to 6 new positions, got [5, 2, 8], [5, 2, 8], 2");
}

using HeadsLinearTest = DeviceTest;
HERO_ON_DEVICES(HeadsLinearTest);

TEST_P(HeadsLinearTest, Values) {
  for (const auto& c : all_cases(kHeadsLinearCases)) {
    for (const bool transposed : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "T " << c.tokens << " H " << c.heads << " I " << c.in << " O "
                                        << c.out << (transposed ? " transposed" : ""));
      // Slices of wider rows and taller weights.
      const auto x = normal({c.tokens, c.heads, c.in + 8}, 1).slice(2, 8);
      const auto w = transposed ? normal({c.heads, c.in + 2, c.out}, 2).slice(1, 2)
                                : normal({c.heads, c.out + 2, c.in}, 2).slice(1, 2);
      const auto want = at::einsum(transposed ? "thi,hio->tho" : "thi,hoi->tho", {x, w});
      const auto cast = [&](const at::Tensor& t) { return t.to(type()).to(device()); };
      const auto x_cast = cast(normal({c.tokens, c.heads, c.in + 8}, 1)).slice(2, 8);
      const auto got = ops::heads_linear(x_cast, cast(w), transposed);
      EXPECT_TRUE(close(got.cpu().to(at::kDouble), want, tolerance(kRoundedOnce)));
    }
  }
}

}  // namespace cached_attention_test
}  // namespace hero::test
