// Coupling statistics against loops over the weights.
#include "analysis/coupling.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "analysis/perturbed_models.h"
#include "io/error.h"

namespace coupling_test {

namespace fs = std::filesystem;
using analyze::kVariants;
using hero::test::TemporaryFolder;

struct Example {
  explicit Example(const hero::Config& config, uint64_t seed = 5) : model(config) {
    small::perturb(model, 0.1, seed);
    analyze::save(model, folder.path());
  }
  at::Tensor weight(int64_t l) const {
    return oracle::copy_weights(model.parameters()).at(analyze::router_name(model.config(), l)).detach();
  }

  TemporaryFolder folder;
  hero::Transformer model;
};

// W_R^(l,p), with S(l) from the oracle.
at::Tensor block(const Example& example, const std::vector<int64_t>& seen, int64_t l, size_t m) {
  const auto& config = example.model.config();
  const int64_t e = config.model.num_experts, first = config.model.hidden_size + static_cast<int64_t>(m) * e;
  EXPECT_EQ(example.weight(l).size(1), config.model.hidden_size + static_cast<int64_t>(seen.size()) * e);
  return example.weight(l).slice(1, first, first + e);
}

double frobenius(const at::Tensor& matrix) {
  double sum = 0;
  for (int64_t i = 0; i < matrix.size(0); ++i)
    for (int64_t j = 0; j < matrix.size(1); ++j) sum += std::pow(matrix[i][j].item<double>(), 2);
  return std::sqrt(sum);
}

double ninetieth(std::vector<double> values) {
  std::ranges::sort(values);
  const double place = 0.9 * static_cast<double>(values.size() - 1);
  const auto i = static_cast<size_t>(place);
  return values[i] + (values[i + 1] - values[i]) * (place - std::floor(place));
}

std::vector<double> entries_of(const at::Tensor& block) {
  const auto* w = block.const_data_ptr<double>();
  return {w, w + block.numel()};
}

// Entries of an [E, E] block minus the means of their column and row, plus the block's mean.
at::Tensor without_means(const at::Tensor& block) {
  const int64_t e = block.size(0);
  std::vector<double> w = entries_of(block), rows(e, 0.0), columns(e, 0.0);
  double all = 0;
  for (int64_t i = 0; i < e * e; ++i) {
    rows[i / e] += w[i] / static_cast<double>(e);
    columns[i % e] += w[i] / static_cast<double>(e);
    all += w[i] / static_cast<double>(e * e);
  }
  for (int64_t i = 0; i < e * e; ++i) w[i] += all - rows[i / e] - columns[i % e];
  return at::tensor(w, at::kDouble).view({e, e});
}

// Entries within rounding of tau may be on either side.
void expect_strong(const std::optional<hero::StrongCoupling>& found,
                   const std::map<int64_t, std::vector<double>>& by_distance) {
  ASSERT_TRUE(found);
  std::vector<double> magnitudes;
  for (const auto& [distance, values] : by_distance)
    for (const double w : values) magnitudes.push_back(std::abs(w));
  EXPECT_NEAR(found->tau, ninetieth(magnitudes), 1e-15);
  ASSERT_EQ(found->distances.size(), by_distance.size());
  const auto percent = [](const std::vector<double>& values, double sign, double bound) {
    const auto beyond = std::ranges::count_if(values, [&](double w) { return sign * w > bound; });
    return 100 * static_cast<double>(beyond) / static_cast<double>(values.size());
  };
  size_t i = 0;
  for (const auto& [distance, values] : by_distance) {
    const auto& row = found->distances[i++];
    EXPECT_EQ(row.distance, distance);
    EXPECT_EQ(row.entries, static_cast<int64_t>(values.size()));
    const double low = found->tau - 1e-15, high = found->tau + 1e-15;
    EXPECT_LE(row.negative, percent(values, -1, low) + 1e-9);
    EXPECT_GE(row.negative, percent(values, -1, high) - 1e-9);
    EXPECT_LE(row.positive, percent(values, +1, low) + 1e-9);
    EXPECT_GE(row.positive, percent(values, +1, high) - 1e-9);
  }
}

TEST(Coupling, DependencyThresholdAndRatiosMatchEquations) {
  for (const auto& variant : kVariants) {
    SCOPED_TRACE(variant.name);
    const Example example(analyze::config_of(variant));
    const auto found = hero::coupling(hero::RouterHistory(example.folder.path(), example.model.config()));
    const auto stages = oracle::stages(5, variant.stages);
    auto want_D = at::zeros({5, 5}, at::kDouble), want_centered_D = at::zeros({5, 5}, at::kDouble);
    auto want_bias = at::zeros({5, 8}, at::kDouble);
    std::map<int64_t, std::vector<double>> by_distance, centered_by_distance;
    size_t pairs = 0;
    for (int64_t l = 1; l <= 5; ++l) {
      const auto seen = oracle::visible(l, example.model.config().router, stages);
      for (size_t m = 0; m < seen.size(); ++m) {
        const auto w = block(example, seen, l, m).contiguous();
        const double factor =
            variant.scale ? std::sqrt(static_cast<double>(l - 1) / static_cast<double>(seen.size())) : 1.0;
        const auto centered = without_means(w);
        const double norm = frobenius(w), centered_norm = frobenius(centered);
        want_D[l - 1][seen[m] - 1] = norm * factor;
        want_centered_D[l - 1][seen[m] - 1] = centered_norm * factor;
        for (const auto& [entries, values] : {std::pair{&by_distance, w}, {&centered_by_distance, centered}})
          std::ranges::copy(entries_of(values), std::back_inserter((*entries)[l - seen[m]]));
        for (int64_t target = 0; target < 8; ++target)
          want_bias[l - 1][target] += w[target].sum().item<double>() / 8 - w.sum().item<double>() / 64;
        ASSERT_LT(pairs, found.pairs.size());
        const auto& pair = found.pairs[pairs++];
        EXPECT_EQ(pair.pair.layer, l);
        EXPECT_EQ(pair.pair.predecessor, seen[m]);
        EXPECT_DOUBLE_EQ(pair.depth_factor, factor);
        EXPECT_NEAR(pair.raw.norm, norm, 1e-12);
        EXPECT_NEAR(pair.centered.norm, centered_norm, 1e-12);
        EXPECT_NEAR(pair.centered.effective_rank, hero::effective_rank(centered), 1e-9);
      }
    }
    EXPECT_EQ(pairs, found.pairs.size());
    for (const auto& [statistics, want] :
         {std::pair{&found.raw, want_D}, std::pair{&found.centered, want_centered_D}}) {
      EXPECT_LT(small::relative_error(statistics->dependency_LL, want), 1e-13);
      EXPECT_TRUE(statistics->dependency_LL.eq(0).equal(want.eq(0)));
    }
    EXPECT_LT((found.expert_bias_LE - want_bias).abs().max().item<double>(), 1e-14);
    expect_strong(found.raw.strong, by_distance);
    expect_strong(found.centered.strong, centered_by_distance);
  }
}

// 121 entries: the 90th percentile is the 109th smallest entry, which is not above it.
TEST(Coupling, EntriesAtThresholdAreNotCounted) {
  auto config = small::qwen();
  config.model.num_hidden_layers = 2;
  config.model.num_experts = 11;
  std::set<bool> signs;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    const Example example(config, seed);
    const auto found = hero::coupling(hero::RouterHistory(example.folder.path(), config));
    ASSERT_EQ(found.raw.strong->distances.size(), 1u);
    const auto& row = found.raw.strong->distances[0];
    EXPECT_NEAR((row.negative + row.positive) / 100 * 121, 12, 1e-9);
    const auto block = example.weight(2).slice(1, 24);
    const bool above = block.eq(found.raw.strong->tau).any().item<bool>();
    EXPECT_NE(above, block.eq(-found.raw.strong->tau).any().item<bool>());
    signs.insert(above);
  }
  EXPECT_EQ(signs.size(), 2u);
}

TEST(Coupling, BlocksWithDenseLayersAndWithoutConfigToml) {
  auto config = small::deepseek();
  config.train.dtype = hero::Dtype::kFp32;
  const Example example(config);
  fs::remove(example.folder / "config.toml");
  const auto read = hero::load_model_config(example.folder.path());
  EXPECT_EQ(read.router.kind, "hero");
  const hero::RouterHistory history(example.folder.path(), read);
  for (int64_t l = 2; l <= 4; ++l) {
    for (int64_t p = 1; p < l; ++p) {
      const auto want = example.weight(l).slice(1, 24 + (p - 1) * 8, 24 + p * 8).to(at::kDouble);
      EXPECT_TRUE(history.block(l, p).equal(want)) << l << " " << p;
    }
  }
}

TEST(Coupling, PercentileBetweenTwoValues) {
  const auto of = [](std::vector<double> values, double percent) {
    return hero::percentile(values, percent);
  };
  EXPECT_EQ(of({7}, 90), 7);
  EXPECT_EQ(of({3, 1, 2}, 50), 2);
  EXPECT_DOUBLE_EQ(of({4, 1, 3, 2}, 90), 3.7);
  EXPECT_DOUBLE_EQ(of({10, 0}, 25), 2.5);
  EXPECT_EQ(of({5, 1}, 100), 5);
}

TEST(Coupling, EffectiveRankOfMatricesWithKnownSingularValues) {
  EXPECT_NEAR(hero::effective_rank(at::eye(6)), 6, 1e-12);
  EXPECT_NEAR(hero::effective_rank(at::ones({6, 6})), 1, 1e-6);
  EXPECT_EQ(hero::effective_rank(at::zeros({6, 6})), 0);
  // Singular values 3 and 1, rotated.
  const auto rotation = std::get<0>(at::linalg_qr(small::normal({2, 2}, 1)));
  const auto matrix = at::mm(rotation, at::diag(at::tensor({3.0, 1.0}, at::kDouble)));
  const double entropy = -(0.75 * std::log(0.75) + 0.25 * std::log(0.25));
  EXPECT_NEAR(hero::effective_rank(matrix), std::exp(entropy), 1e-12);
}

TEST(Coupling, DefaultPair) {
  const auto pair = [](int64_t layers, int64_t stages) {
    hero::RouterConfig router;
    router.kind = "hero";
    router.stages = stages;
    return hero::default_pair(hero::HistoryLayout(layers, 4, router));
  };
  EXPECT_EQ(pair(30, 2)->layer, 10);
  EXPECT_EQ(pair(30, 2)->predecessor, 9);
  EXPECT_EQ(pair(5, 1)->layer, 3);   // of 2, 3, 4, 5
  EXPECT_EQ(pair(18, 2)->layer, 9);  // 10 starts a stage; of 2 .. 9 and 11 .. 18
  EXPECT_EQ(pair(2, 1)->layer, 2);
  EXPECT_FALSE(pair(1, 1));
  EXPECT_FALSE(pair(4, 4));
}

TEST(Coupling, NothingVisible) {
  auto config = small::qwen();
  config.router.stages = 4;
  const Example example(config);
  const auto found = hero::coupling(hero::RouterHistory(example.folder.path(), config));
  EXPECT_FALSE(found.raw.strong || found.centered.strong);
  EXPECT_TRUE(found.pairs.empty());
  for (const auto& values : {found.raw.dependency_LL, found.centered.dependency_LL, found.expert_bias_LE})
    EXPECT_EQ(values.abs().max().item<double>(), 0);
}

TEST(Coupling, RejectsBaselinesAndInvalidWeights) {
  Example example(small::qwen());
  auto config = small::qwen();
  config.router.kind = "baseline";
  const auto read_history = [&] { hero::RouterHistory(example.folder.path(), config); };
  EXPECT_NE(hero::test::error_of<hero::UserError>(read_history)
                .find("router.kind = \"baseline\", expected a HERO model"),
            std::string::npos);
  config = small::qwen();
  config.router.window = 1;
  EXPECT_NE(hero::test::error_of<hero::UserError>(read_history)
                .find("model.layers.2.mlp.gate.weight has the shape"),
            std::string::npos);
  config.router.window = 0;
  for (auto& p : example.model.parameters().all()) {
    if (p.name == "model.layers.2.mlp.gate.weight") p.values[0][30] = std::nan("");
  }
  analyze::save(example.model, example.folder.path());
  EXPECT_NE(hero::test::error_of<hero::UserError>(read_history)
                .find("model.layers.2.mlp.gate.weight: found a non-finite value"),
            std::string::npos);
}

}  // namespace coupling_test
