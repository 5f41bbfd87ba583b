#include "inference/sampler.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "model/random.h"

namespace hero {
namespace sampler_test {

// Reference implementation: full sort, top-k, top-p, then inverse-CDF sampling.
int64_t sample_token_reference(const at::Tensor& logits_V, const SamplingParams& sampling, uint64_t index) {
  const auto [sorted, ids] = logits_V.to(at::kDouble).sort(/*stable=*/true, /*dim=*/0, /*descending=*/true);
  const int64_t kept = sampling.top_k > 0 ? std::min(sorted.numel(), sampling.top_k) : sorted.numel();
  const auto probs = (sorted.slice(0, 0, kept) / sampling.temperature).softmax(0);
  int64_t nucleus = 1;
  while (nucleus < kept && probs.slice(0, 0, nucleus).sum().item<double>() < sampling.top_p) ++nucleus;
  const auto kept_probs = probs.slice(0, 0, nucleus);
  const double draw = uniform_at(sampling.seed, "generate", index) * kept_probs.sum().item<double>();
  const int64_t rank = (kept_probs.cumsum(0) <= draw).sum().item<int64_t>();
  return ids[std::min(rank, nucleus - 1)].item<int64_t>();
}

// `spread`: standard deviation; the larger, the fewer ids hold most of the probability.
at::Tensor random_logits(int64_t vocab, double spread) {
  auto values = at::empty({vocab}, at::kFloat);
  fill_normal(values, 7, "logits", spread);
  return values;
}

TEST(SampleToken, MatchesReference) {
  for (const int64_t vocab : {1, 5, 64, 65, 700}) {
    for (const double spread : {0.1, 2.0, 8.0}) {
      const auto row = random_logits(vocab, spread);
      for (const int64_t top_k : {0, 1, 3, 70, 1000}) {
        for (const double top_p : {0.0, 0.3, 0.95, 1.0}) {
          for (const double temperature : {0.5, 1.7}) {
            const SamplingParams sampling{.temperature = temperature, .top_k = top_k, .top_p = top_p};
            for (uint64_t index = 0; index < 8; ++index) {
              ASSERT_EQ(sample_token(row, sampling, index), sample_token_reference(row, sampling, index))
                  << "vocab " << vocab << " spread " << spread << " k " << top_k << " p " << top_p
                  << " index " << index;
            }
          }
        }
      }
    }
  }
}

TEST(SampleToken, TiesGoToTheLowerId) {
  auto row = at::zeros({300});
  row[17] = row[250] = 3.0;
  for (uint64_t index = 0; index < 50; ++index) {
    EXPECT_EQ(sample_token(row, {.top_k = 1}, index), 17);
    const int64_t id = sample_token(row, {.temperature = 0.01, .top_k = 3}, index);
    EXPECT_TRUE(id == 17 || id == 250) << id;
  }
  std::set<int64_t> seen;
  for (uint64_t index = 0; index < 200; ++index) seen.insert(sample_token(row, {.top_k = 4}, index));
  EXPECT_EQ(seen, (std::set<int64_t>{0, 1, 17, 250}));
}

// Of 4,000 samples, the count of an id with probability p is within 5 standard deviations of 4,000 p.
TEST(SampleToken, SamplesFollowTheProbabilities) {
  const auto row = at::tensor({0.0, 1.0, -1.0, 0.5}).to(at::kFloat);
  const SamplingParams sampling{.temperature = 0.8};
  const auto probs = (row.to(at::kDouble) / sampling.temperature).softmax(0);
  std::map<int64_t, int64_t> counts;
  const int64_t samples = 4000;
  for (int64_t i = 0; i < samples; ++i) ++counts[sample_token(row, sampling, static_cast<uint64_t>(i))];
  for (int64_t id = 0; id < row.numel(); ++id) {
    const double p = probs[id].item<double>(), n = static_cast<double>(samples);
    EXPECT_NEAR(static_cast<double>(counts[id]), n * p, 5 * std::sqrt(n * p * (1 - p))) << id;
  }
}

TEST(SampleToken, ZeroTemperatureIsGreedy) {
  EXPECT_EQ(sample_token(at::tensor({0.1, 0.9, 0.3}), {.temperature = 0}, 5), 1);
}

TEST(SampleToken, GreedyIsTheFirstMaximum) {
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    auto row = at::empty({1 + static_cast<int64_t>(random() % 1200)}, at::kFloat);
    auto* const logits = row.data_ptr<float>();
    for (int64_t i = 0; i < row.numel(); ++i)  // many ties
      logits[i] = static_cast<float>(static_cast<int>(random() % 40) - 30);
    if (seed % 4 == 0) row.fill_(-INFINITY);
    const float special[] = {-INFINITY, INFINITY, NAN, 50};
    for (size_t i = random() % 3; i > 0; --i)
      logits[random() % static_cast<unsigned>(row.numel())] = special[random() % 4];
    EXPECT_EQ(sample_token(row, {.temperature = 0}, 0), row.argmax().item<int64_t>()) << "seed " << seed;
  }
}

}  // namespace sampler_test
}  // namespace hero
