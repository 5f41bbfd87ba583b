// Initial weights, their names in checkpoints, and the leaves' gradients.
#include "model/parameters.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <set>

#include "loss/loss.h"
#include "model/random.h"
#include "oracle/small_models.h"

namespace parameters_test {

std::set<std::string> checkpoint_names(const hero::Transformer& model) {
  std::set<std::string> names;
  for (const auto& [name, values] : model.parameters().state_dict())
    EXPECT_TRUE(names.insert(name).second) << name;
  return names;
}

void add_experts(std::set<std::string>& names, const std::string& prefix, int64_t experts) {
  names.insert(prefix + "gate.weight");
  for (int64_t e = 0; e < experts; ++e) {
    for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
      names.insert(prefix + "experts." + std::to_string(e) + "." + part + ".weight");
    }
  }
}

TEST(Parameters, CheckpointNamesOfQwen) {
  std::set<std::string> names = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"};
  for (const char* i : {"0", "1", "2", "3"}) {
    const std::string layer = std::string("model.layers.") + i + ".";
    for (const char* part :
         {"input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj",
          "self_attn.v_proj", "self_attn.o_proj", "self_attn.q_norm", "self_attn.k_norm"}) {
      names.insert(layer + part + ".weight");
    }
    add_experts(names, layer + "mlp.", 8);
  }
  EXPECT_EQ(checkpoint_names(hero::Transformer(small::qwen())), names);
  auto tied = small::qwen();
  tied.model.tie_word_embeddings = true;
  names.erase("lm_head.weight");
  EXPECT_EQ(checkpoint_names(hero::Transformer(tied)), names);
}

TEST(Parameters, CheckpointNamesOfDeepseek) {
  for (const bool query_rank : {false, true}) {
    auto config = small::deepseek();
    config.model.num_hidden_layers = 3;
    config.model.n_shared_experts = 2;
    config.model.q_lora_rank = query_rank ? 9 : 0;
    std::set<std::string> names = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"};
    for (const char* i : {"0", "1", "2"}) {
      const std::string layer = std::string("model.layers.") + i + ".";
      for (const char* part : {"input_layernorm", "post_attention_layernorm", "self_attn.kv_a_proj_with_mqa",
                               "self_attn.kv_a_layernorm", "self_attn.kv_b_proj", "self_attn.o_proj"}) {
        names.insert(layer + part + ".weight");
      }
      if (query_rank) {
        for (const char* part : {"q_a_proj", "q_a_layernorm", "q_b_proj"})
          names.insert(layer + "self_attn." + part + ".weight");
      } else {
        names.insert(layer + "self_attn.q_proj.weight");
      }
      const std::string feed_forward = *i == '0' ? "mlp." : "mlp.shared_experts.";
      for (const char* part : {"gate_proj", "up_proj", "down_proj"})
        names.insert(layer + feed_forward + part + ".weight");
      if (*i == '0') continue;
      add_experts(names, layer + "mlp.", 8);
      names.insert(layer + "mlp.gate.e_score_correction_bias");
    }
    EXPECT_EQ(checkpoint_names(hero::Transformer(config)), names);
  }
}

TEST(Parameters, PartsCoverTheParameterExactlyOnce) {
  hero::Transformer model(small::deepseek());
  for (const auto& p : model.parameters().all()) {
    auto covered = at::zeros_like(p.values);
    for (const auto& part : p.parts) part.view_of(covered).add_(1);
    EXPECT_TRUE(covered.eq(1).all().item<bool>()) << p.name;
    EXPECT_EQ(p.decay, p.values.dim() > 1) << p.name;
    EXPECT_EQ(p.leaf.sizes(), p.values.sizes()) << p.name;
  }
}

TEST(Parameters, InitialValuesDependOnTheSeedNotOnThreads) {
  auto config = small::fused(small::deepseek());
  config.train.dtype = hero::Dtype::kFp32;
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  hero::Transformer one(config);
  at::set_num_threads(2);
  hero::Transformer two(config);
  at::set_num_threads(threads);
  config.train.seed += 1;
  hero::Transformer other(config);
  for (size_t i = 0; i < one.parameters().all().size(); ++i) {
    const auto &a = one.parameters().all()[i], &b = two.parameters().all()[i],
               &c = other.parameters().all()[i];
    EXPECT_TRUE(a.values.equal(b.values)) << a.name;
    EXPECT_EQ(a.values.equal(c.values), a.values.dim() == 1) << a.name;
  }
}

TEST(Parameters, MatricesAreNormalAndNormWeightsAreOne) {
  auto config = small::fused(small::qwen());
  config.train.dtype = hero::Dtype::kFp32;
  config.model.initializer_range = 0.02;
  hero::Transformer model(config);
  for (const auto& p : model.parameters().all()) {
    if (p.name.ends_with("gate.weight")) continue;
    if (p.values.dim() == 1) {
      EXPECT_TRUE(p.values.eq(1).all().item<bool>()) << p.name;
      continue;
    }
    for (const auto& part : p.parts) {
      const auto z = part.view_of(p.values).to(at::kDouble).flatten() / 0.02;
      const auto n = static_cast<double>(z.numel());
      EXPECT_LT(std::abs(z.mean().item<double>()), 5.0 / std::sqrt(n)) << part.name;
      EXPECT_LT(std::abs(z.pow(2).mean().item<double>() - 1), 5.0 * std::sqrt(2.0 / n)) << part.name;
      EXPECT_LT(std::abs(z.pow(3).mean().item<double>()), 5.0 * std::sqrt(15.0 / n)) << part.name;
      EXPECT_LT(std::abs(z.pow(4).mean().item<double>() - 3), 5.0 * std::sqrt(96.0 / n)) << part.name;
    }
  }
}

TEST(Random, StreamsOfDifferentNamesAndSeedsAreUncorrelated) {
  constexpr int64_t n = 100000;
  const auto sample = [](uint64_t seed, const char* name) {
    const auto out = at::empty({n}, at::kDouble);
    hero::fill_normal(out, seed, name, 1.0);
    return out;
  };
  const auto a = sample(1, "model.layers.0.mlp.experts.0.up_proj.weight");
  for (const auto& b : {sample(1, "model.layers.0.mlp.experts.1.up_proj.weight"), sample(1, ""),
                        sample(2, "model.layers.0.mlp.experts.0.up_proj.weight"),
                        sample(1, "model.layers.0.mlp.experts.0.gate_proj.weight"), a.roll(1), a.roll(2)}) {
    EXPECT_LT(std::abs((a * b).mean().item<double>()), 5.0 / std::sqrt(static_cast<double>(n)));
  }
}

TEST(Random, SamplesDependOnlyOnTheirIndex) {
  const auto whole = at::empty({3, 7}, at::kDouble), part = at::empty({5}, at::kDouble),
             strided = at::empty({7, 3}, at::kDouble).t();
  hero::fill_uniform(whole, 9, "a", -2.0, 3.0);
  hero::fill_uniform(part, 9, "a", -2.0, 3.0);
  hero::fill_uniform(strided, 9, "a", -2.0, 3.0);
  EXPECT_TRUE(whole.flatten().slice(0, 0, 5).equal(part));
  EXPECT_TRUE(whole.equal(strided));
  for (int64_t i = 0; i < 21; ++i) {
    EXPECT_EQ(whole.flatten()[i].item<double>(), -2.0 + 5.0 * hero::uniform_at(9, "a", i));
  }
}

// The fp32 gradient of a bf16 leaf accumulates two micro-batches without rounding to bf16.
TEST(Parameters, Bf16LeavesAccumulateGradientsInFp32) {
  auto not_detached = small::qwen();
  not_detached.router.detach = false;
  for (const auto& base : {small::qwen(), small::deepseek(), not_detached}) {
    hero::Transformer model(small::fused(base));
    auto& all = model.parameters().all();
    const auto backward = [&](uint64_t seed) {
      const auto tokens = small::tokens(2, 32, 96, seed);
      const auto out = model.forward(tokens);
      const auto balance = hero::BalanceState::uniform(model.layout().layers(), 32);
      hero::compute_losses(model, out, tokens.flatten().roll(-1), 32, balance).total.backward();
    };
    const auto take = [&] {
      std::vector<at::Tensor> gradients;
      for (auto& p : all) {
        EXPECT_EQ(p.leaf.scalar_type(), at::kBFloat16) << p.name;
        EXPECT_EQ(p.leaf.grad().scalar_type(), at::kFloat) << p.name;
        gradients.push_back(p.leaf.grad().clone());
        p.leaf.mutable_grad() = at::Tensor();
      }
      return gradients;
    };
    backward(1);
    const auto first = take();
    backward(2);
    const auto second = take();
    backward(1);
    backward(2);
    const auto both = take();
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_TRUE(both[i].equal(first[i] + second[i])) << all[i].name;
      EXPECT_FALSE(first[i].equal(first[i].to(at::kBFloat16).to(at::kFloat)))
          << all[i].name << ": rounded to bf16";
    }
  }
}

TEST(Parameters, UpdateLeavesCopiesValues) {
  hero::Transformer model(small::fused(small::qwen()));
  auto& p = model.parameters().all().front();
  EXPECT_TRUE(p.leaf.equal(p.values.to(at::kBFloat16)));
  {
    at::NoGradGuard no_grad;
    p.values.mul_(3);
  }
  EXPECT_FALSE(p.leaf.equal(p.values.to(at::kBFloat16)));
  model.parameters().update_leaves();
  EXPECT_TRUE(p.leaf.equal(p.values.to(at::kBFloat16)));
  EXPECT_TRUE(p.leaf.requires_grad());
}

}  // namespace parameters_test
