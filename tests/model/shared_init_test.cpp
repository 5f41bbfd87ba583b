// Model variants with the same seed share the initial weights that they have in common.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "model/random.h"
#include "oracle/small_models.h"

namespace shared_init_test {

using Values = std::map<std::string, at::Tensor>;

Values initial(const std::function<void(hero::Config&)>& change) {
  auto config = small::qwen();
  config.train.dtype = hero::Dtype::kFp32;
  config.model.num_hidden_layers = 6;
  change(config);
  const hero::Transformer model(config);
  Values values;
  for (const auto& [name, tensor] : model.parameters().state_dict()) values[name] = tensor.clone();
  return values;
}

std::string gate(int64_t l) { return "model.layers." + std::to_string(l - 1) + ".mlp.gate.weight"; }

constexpr int64_t kHidden = 24, kExperts = 8;

// Block of layer p in the router of layer l, whose first visible layer is `first`.
at::Tensor block(const Values& values, int64_t l, int64_t p, int64_t first) {
  return values.at(gate(l)).slice(1, kHidden + (p - first) * kExperts, kHidden + (p - first + 1) * kExperts);
}

TEST(SharedInit, AllWeightsExceptRoutersAreBitwiseEqual) {
  const auto hero = initial([](auto&) {});
  for (const auto& other :
       {initial([](auto& c) { c.router.kind = "baseline"; }), initial([](auto& c) { c.router.window = 1; }),
        initial([](auto& c) { c.router.stages = 2; }), initial([](auto& c) { c.router.detach = false; })}) {
    ASSERT_EQ(other.size(), hero.size());
    for (const auto& [name, values] : hero) {
      const bool router = name.ends_with("gate.weight");
      EXPECT_TRUE(router || other.at(name).equal(values)) << name;
    }
  }
}

TEST(SharedInit, BaselineRescalesTheSameSamples) {
  const auto hero = initial([](auto&) {}), baseline = initial([](auto& c) { c.router.kind = "baseline"; });
  for (int64_t l = 1; l <= 6; ++l) {
    const auto w = baseline.at(gate(l));
    ASSERT_EQ(w.sizes(), at::IntArrayRef({kExperts, kHidden}));
    const double ratio =
        std::sqrt(static_cast<double>(kHidden) / static_cast<double>(kHidden + (l - 1) * kExperts));
    // Two fp32 roundings of the same sample.
    EXPECT_LT(small::relative_error(hero.at(gate(l)).slice(1, 0, kHidden), w.to(at::kDouble) * ratio), 2e-7);
  }
}

TEST(SharedInit, WindowsShareBlocksBitwise) {
  const auto all = initial([](auto&) {});
  for (const int64_t window : {1, 2, 3}) {
    const auto some = initial([&](auto& c) { c.router.window = window; });
    for (int64_t l = 1; l <= 6; ++l) {
      const int64_t first = std::max<int64_t>(1, l - window);
      ASSERT_EQ(some.at(gate(l)).size(1), kHidden + (l - first) * kExperts);
      EXPECT_TRUE(some.at(gate(l)).slice(1, 0, kHidden).equal(all.at(gate(l)).slice(1, 0, kHidden)));
      for (int64_t p = first; p < l; ++p)
        EXPECT_TRUE(block(some, l, p, first).equal(block(all, l, p, 1))) << l << " " << p;
    }
  }
}

TEST(SharedInit, StagesDoNotChangeSharedBlocks) {
  const auto all = initial([](auto&) {}), staged = initial([](auto& c) { c.router.stages = 2; }),
             global = initial(
                 [](auto& c) { c.router.stages = 2, c.router.history = hero::HistoryScope::kGlobal; });
  for (int64_t l = 1; l <= 6; ++l) {
    const int64_t first = l <= 3 ? 1 : 4;
    ASSERT_EQ(staged.at(gate(l)).size(1), kHidden + (l - first) * kExperts);
    EXPECT_TRUE(staged.at(gate(l)).slice(1, 0, kHidden).equal(all.at(gate(l)).slice(1, 0, kHidden)));
    for (int64_t p = first; p < l; ++p)
      EXPECT_TRUE(block(staged, l, p, first).equal(block(all, l, p, 1))) << l << " " << p;
    EXPECT_TRUE(global.at(gate(l)).equal(all.at(gate(l))));
  }
}

TEST(SharedInit, ZeroInitMatchesBaselineRouters) {
  const auto baseline = initial([](auto& c) { c.router.kind = "baseline"; }),
             zero = initial([](auto& c) { c.router.init = hero::RouterInit::kZero; });
  for (int64_t l = 1; l <= 6; ++l) {
    EXPECT_TRUE(zero.at(gate(l)).slice(1, 0, kHidden).equal(baseline.at(gate(l))));
    EXPECT_TRUE(zero.at(gate(l)).slice(1, kHidden).eq(0).all().item<bool>());
  }
}

TEST(SharedInit, DtypesShareTheSameSamples) {
  const auto single = initial([](auto&) {}),
             twice = initial([](auto& c) { c.train.dtype = hero::Dtype::kFp64; }),
             half = initial([](auto& c) { c.train.dtype = hero::Dtype::kBf16; });
  for (const auto& [name, values] : single) {
    EXPECT_TRUE(twice.at(name).to(at::kFloat).equal(values)) << name;
    EXPECT_TRUE(half.at(name).equal(values)) << name;
  }
}

}  // namespace shared_init_test
