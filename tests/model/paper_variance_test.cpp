// Propositions 4 and 5 and their remarks: variance of the initial logits over many samples of the weights.
// Given the inputs, logits of different samples and experts are independent, so a variance estimated from n
// of them has relative standard error sqrt(2/n) (less for uniform weights). Tolerance: 5 standard errors.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "oracle/router_stack.h"

namespace paper_variance_test {

constexpr int64_t kLayers = 6, kSamples = 400, kHidden = 24, kExperts = 8;
constexpr double kSigma2 = 1.7;

struct Moments {
  // Of one token's logits, over samples and experts.
  double z = 0, original = 0, residual = 0, covariance = 0;
  double attenuation = 0;  // mean of (r_h / (r_h + eps))^2
};

// Moments of every layer. Weights have zero mean, so raw second moments are variances.
std::vector<Moments> moments(int64_t stages, double eps) {
  auto c = small::qwen();
  c.router.stages = stages;
  c.router.eps = eps;
  std::vector<Moments> sum(kLayers);
  const auto xs = [&] {
    auto list = small::inputs(kLayers, 1, kHidden, 50);
    for (auto& x : list) x = x * std::sqrt(kSigma2 * kHidden / x.pow(2).sum().item<double>());
    return list;
  }();
  at::NoGradGuard no_grad;
  for (int64_t sample = 0; sample < kSamples; ++sample) {
    const small::RouterStack stack(c, kLayers, 1000 + sample);
    const auto out = stack(xs);
    for (int64_t l = 1; l <= kLayers; ++l) {
      const auto z_o = at::matmul(xs[l - 1], stack.weight(l).slice(1, 0, kHidden).t()),
                 z_r = out[l - 1].logits - z_o;
      auto& m = sum[l - 1];
      m.z += out[l - 1].logits.pow(2).mean().item<double>() / kSamples;
      m.original += z_o.pow(2).mean().item<double>() / kSamples;
      m.residual += z_r.pow(2).mean().item<double>() / kSamples;
      m.covariance += (z_o * z_r).mean().item<double>() / kSamples;
      const double r_h = out[l - 1].stats[0][hero::ops::RouteStat::kRmsHistory].item<double>();
      if (r_h > 0) m.attenuation += std::pow(r_h / (r_h + eps), 2) / kSamples;
    }
  }
  return sum;
}

constexpr double kLogits = kSamples * kExperts;
const double kTolerance = 5 * std::sqrt(2.0 / kLogits);

double fan_in(int64_t l) { return kHidden + static_cast<double>(l - 1) * kExperts; }

TEST(PaperProposition4, InitialLogitVarianceIsIndependentOfDepthAndVisibleLayers) {
  for (const int64_t stages : {1, 2}) {
    const auto m = moments(stages, 0.0);
    for (int64_t l = 1; l <= kLayers; ++l) {
      if (stages == 2 && l == 4) continue;  // M = 0: see the next test
      EXPECT_NEAR(m[l - 1].z / (kSigma2 / 3), 1.0, kTolerance)
          << "layer " << l << " of " << stages << " stages";
    }
  }
}

TEST(PaperProposition4, WithoutHistoryTheVarianceIsThatOfTheOriginalBranch) {
  const auto m = moments(kLayers, 0.0);
  for (int64_t l = 1; l <= kLayers; ++l) {
    EXPECT_NEAR(m[l - 1].z / (kHidden / fan_in(l) * kSigma2 / 3), 1.0, kTolerance) << "layer " << l;
    EXPECT_EQ(m[l - 1].residual, 0.0);
  }
}

TEST(PaperProposition4Remark, EpsAttenuatesTheHistoricalContribution) {
  const auto m = moments(2, 0.1);
  for (const int64_t l : {2, 3, 5, 6}) {
    const double history = (l - 1) * kExperts / fan_in(l) * kSigma2 / 3;
    EXPECT_LT(m[l - 1].attenuation, 0.5);
    EXPECT_NEAR(m[l - 1].residual / (history * m[l - 1].attenuation), 1.0, kTolerance) << "layer " << l;
  }
}

TEST(PaperProposition5, BranchVariancesAddUpWithoutCovariance) {
  for (const int64_t stages : {1, 2}) {
    const auto m = moments(stages, 0.0);
    for (int64_t l = 2; l <= kLayers; ++l) {
      if (stages == 2 && l == 4) continue;
      const double original = kHidden / fan_in(l) * kSigma2 / 3,
                   residual = (l - 1) * kExperts / fan_in(l) * kSigma2 / 3;
      EXPECT_NEAR(m[l - 1].original / original, 1.0, kTolerance) << "layer " << l;
      EXPECT_NEAR(m[l - 1].residual / residual, 1.0, kTolerance) << "layer " << l;
      EXPECT_NEAR(m[l - 1].covariance, 0.0, 5 * std::sqrt(original * residual / kLogits)) << "layer " << l;
    }
  }
}

}  // namespace paper_variance_test
