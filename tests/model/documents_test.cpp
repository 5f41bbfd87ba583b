// With train.document_mask and train.document_positions, packed documents have the logits and gradients of
// each document alone.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "oracle/small_models.h"

namespace documents_test {

// fp64, relative to the largest value; the order of sums depends on the packing.
constexpr double kTolerance = 1e-9;

struct Case {
  std::string name;
  hero::Config config;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const auto type : {hero::ModelType::kQwen3Moe, hero::ModelType::kDeepseekV3, hero::ModelType::kOlmoe,
                          hero::ModelType::kMixtral}) {
    auto config = type == hero::ModelType::kDeepseekV3 ? small::deepseek() : small::qwen();
    config.model.model_type = type;
    config.train.document_mask = config.train.document_positions = true;
    list.push_back({name_of(type), config});
    config.router.kind = "baseline";
    config.model.rope_scaling.type = hero::RopeType::kYarn;
    config.model.rope_scaling.original_max_position_embeddings = 8;
    list.push_back({name_of(type) + "_yarn", config});
  }
  auto queries = small::deepseek();
  queries.model.q_lora_rank = 5;
  queries.train.document_mask = queries.train.document_positions = true;
  list.push_back({"deepseek_v3_q_lora", queries});
  return list;
}

// First position of each token's document, [B, S].
at::Tensor starts_of(const std::vector<std::vector<int64_t>>& lengths) {
  std::vector<at::Tensor> rows;
  for (const auto& sequence : lengths) {
    std::vector<int64_t> starts;
    for (const int64_t length : sequence) {
      const auto start = static_cast<int64_t>(starts.size());
      starts.insert(starts.end(), static_cast<size_t>(length), start);
    }
    rows.push_back(at::tensor(starts, at::kLong));
  }
  return at::stack(rows);
}

std::vector<std::vector<int64_t>> random_lengths(int64_t batch, int64_t length, uint64_t seed) {
  std::vector<std::vector<int64_t>> all(static_cast<size_t>(batch));
  for (auto& sequence : all) {
    for (int64_t left = length; left > 0; left -= sequence.back())
      sequence.push_back(std::min(left, 1 + small::tokens(1, 1, 9, seed++).item<int64_t>()));
  }
  return all;
}

struct Result {
  at::Tensor logits;  // [B, S, V]
  std::vector<at::Tensor> gradients;
};

class Documents : public testing::TestWithParam<Case> {
 protected:
  Documents() : config_(GetParam().config) {}

  // Gradients of the sum of logits times fixed weights; the sequences of `parts` in turn.
  static Result run(hero::Transformer& model, const std::vector<at::Tensor>& parts,
                    const std::vector<at::Tensor>& weights, const at::Tensor& starts,
                    bool recompute = false) {
    Result result;
    std::vector<at::Tensor> logits;
    for (size_t i = 0; i < parts.size(); ++i) {
      hero::ForwardContext context{.training = true, .starts_BS = starts};
      const auto output = model.forward(parts[i], context, recompute);
      logits.push_back(model.logits(output.hidden_TD, parts[i].size(0)));
      (logits.back() * weights[i]).sum().backward();
      logits.back() = logits.back().detach().flatten(0, 1);
    }
    result.logits = at::cat(logits, 0);
    for (auto& p : model.parameters().all()) {
      result.gradients.push_back(p.leaf.grad().defined() ? p.leaf.grad().clone() : at::zeros_like(p.values));
      p.leaf.mutable_grad() = at::Tensor();
    }
    return result;
  }

  // Compares packed sequences with their documents alone.
  void compare(const hero::Config& config, const std::vector<std::vector<int64_t>>& lengths, bool recompute) {
    hero::Transformer model(config);
    small::perturb(model, 0.1, 7);
    const auto starts = starts_of(lengths);
    const int64_t vocabulary = config.model.vocab_size;
    const auto tokens = small::tokens(starts.size(0), starts.size(1), vocabulary, 3);
    const auto weights = small::normal({starts.size(0), starts.size(1), vocabulary}, 4);
    std::vector<at::Tensor> documents, document_weights;
    for (int64_t b = 0; b < tokens.size(0); ++b) {
      int64_t first = 0;
      for (const int64_t length : lengths[static_cast<size_t>(b)]) {
        const auto part = [&](const at::Tensor& x) {
          return x.slice(0, b, b + 1).slice(1, first, first + length).contiguous();
        };
        documents.push_back(part(tokens));
        document_weights.push_back(part(weights));
        first += length;
      }
    }
    const auto packed = run(model, {tokens}, {weights}, starts, recompute),
               alone = run(model, documents, document_weights, {});
    EXPECT_LT(small::relative_error(packed.logits, alone.logits), kTolerance);
    for (size_t i = 0; i < alone.gradients.size(); ++i) {
      EXPECT_LT(small::relative_error(packed.gradients[i], alone.gradients[i]), kTolerance)
          << model.parameters().all()[i].name;
    }
  }

  hero::Config config_;
};

TEST_P(Documents, PackedMatchesAlone) {
  compare(config_, {{4, 1, 1, 6}, {12}, {1, 11}}, /*recompute=*/false);
  for (uint64_t seed = 10; seed < 14; ++seed)
    compare(config_, random_lengths(2, 23, 100 * seed), /*recompute=*/seed % 2 != 0);
}

// Rotary embedding depends only on differences of positions: the mask alone has the same logits.
TEST_P(Documents, MaskAloneMatchesAlone) {
  config_.train.document_positions = false;
  compare(config_, {{5, 3, 4}, {1, 2, 9}}, false);
}

TEST_P(Documents, PositionsAloneChangeLaterDocuments) {
  config_.train.document_mask = false;
  hero::Transformer model(config_);
  small::perturb(model, 0.1, 7);
  const at::NoGradGuard no_grad;
  const auto tokens = small::tokens(2, 12, config_.model.vocab_size, 3);
  const auto logits = [&](const at::Tensor& starts) {
    return model.logits(model.forward(tokens, {.starts_BS = starts}).hidden_TD, 2);
  };
  const auto plain = logits({}), restarted = logits(starts_of({{5, 7}, {5, 7}}));
  EXPECT_LT(small::relative_error(restarted.slice(1, 0, 5), plain.slice(1, 0, 5)), kTolerance);
  EXPECT_GT(small::relative_error(restarted.slice(1, 5), plain.slice(1, 5)), 1e-3);
}

// Evaluation and inference pass no documents: the options have no effect.
TEST_P(Documents, WithoutStartsBitwiseAsWithoutTheOptions) {
  auto plain = config_;
  plain.train.document_mask = plain.train.document_positions = false;
  hero::Transformer with(config_), without(plain);
  const at::NoGradGuard no_grad;
  const auto tokens = small::tokens(2, 12, config_.model.vocab_size, 3);
  const auto expected = without.forward(tokens).hidden_TD;
  EXPECT_TRUE(with.forward(tokens).hidden_TD.equal(expected));
  const auto starts = starts_of({{5, 7}, {1, 11}});
  EXPECT_TRUE(without.forward(tokens, {.starts_BS = starts}).hidden_TD.equal(expected));
  EXPECT_FALSE(with.forward(tokens, {.starts_BS = starts}).hidden_TD.equal(expected));
}

// The fused bf16 kernels: an earlier document has no influence, bitwise.
TEST(DocumentsFused, EarlierDocumentsHaveNoInfluence) {
  for (auto base : {small::qwen(), small::deepseek()}) {
    auto config = small::fused(base);
    config.train.document_mask = config.train.document_positions = true;
    hero::Transformer model(config);
    const at::NoGradGuard no_grad;
    const auto tokens = small::tokens(2, 160, config.model.vocab_size, 3);
    const auto starts = starts_of({{70, 90}, {70, 1, 64, 25}});
    auto changed = tokens.clone();
    changed.slice(1, 0, 70).add_(1).remainder_(config.model.vocab_size);
    const auto logits = [&](const at::Tensor& ids) {
      return model.logits(model.forward(ids, {.starts_BS = starts}).hidden_TD, 2);
    };
    const auto before = logits(tokens), after = logits(changed);
    EXPECT_TRUE(after.slice(1, 70).equal(before.slice(1, 70)));
    EXPECT_FALSE(after.slice(1, 0, 70).equal(before.slice(1, 0, 70)));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Documents, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace documents_test
