// oracle_case [--config FILE ...] [--section.key=value ...]: trains a small fp64 model on random tokens for
// train.steps steps, with hero and with the reference implementation. Prints the largest relative differences
// as one JSON line.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "io/error.h"
#include "optim/learning_rate.h"
#include "oracle/small_models.h"
#include "oracle/training.h"
#include "train/step.h"

namespace {

hero::Config read_config(int argc, char** argv) {
  std::vector<std::string> files, flags;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--config" && i + 1 < argc) {
      files.emplace_back(argv[++i]);
    } else {
      flags.push_back(word);
    }
  }
  auto config = hero::load_config(files, flags);
  hero::check(config);
  if (config.train.dtype != hero::Dtype::kFp64)
    throw hero::UserError("train.dtype: found " + name_of(config.train.dtype) + ", expected fp64");
  if (config.model.vocab_size < config.train.micro_batch)
    throw hero::UserError("model.vocab_size: found " + std::to_string(config.model.vocab_size) +
                          ", expected at least train.micro_batch");
  return config;
}

// Tokens of a step, [B, S+1], and the documents of its inputs, [B, S]: each token's document number and its
// first position.
struct Samples {
  at::Tensor tokens, numbers, starts;
};

// A third of the tokens begin a document. Avoids tokens with equal hidden states within a micro-batch (equal
// first tokens of two documents, or equal first two tokens of one): their probabilities would differ only by
// rounding, which would then decide which assignments exceed the capacity.
Samples random_samples(const hero::Config& config, int64_t step) {
  const auto& t = config.train;
  const auto seed = static_cast<uint64_t>(t.seed + step);
  const int64_t vocabulary = config.model.vocab_size;
  Samples samples{small::tokens(t.global_batch, t.sequence + 1, vocabulary, seed),
                  at::zeros({t.global_batch, t.sequence}, at::kLong),
                  at::zeros({t.global_batch, t.sequence}, at::kLong)};
  const auto draws = small::tokens(t.global_batch, t.sequence, 3, seed + 1);
  const auto draw = draws.accessor<int64_t, 2>();
  auto token = samples.tokens.accessor<int64_t, 2>(), number = samples.numbers.accessor<int64_t, 2>(),
       start = samples.starts.accessor<int64_t, 2>();
  int64_t documents = 0;  // of the micro-batch
  for (int64_t b = 0; b < t.global_batch; ++b) {
    const int64_t sequences_left = t.micro_batch - 1 - b % t.micro_batch;
    if (b % t.micro_batch == 0) documents = 0;
    for (int64_t s = 0; s < t.sequence; ++s) {
      const bool begins = s == 0 || (draw[b][s] == 0 && documents + sequences_left < vocabulary);
      start[b][s] = begins ? s : start[b][s - 1];
      if (begins) token[b][s] = (documents++ + step) % vocabulary;
      if (!begins && s == start[b][s] + 1 && token[b][s] == token[b][s - 1])
        token[b][s] = (token[b][s] + 1) % vocabulary;
      number[b][s] = documents;
    }
  }
  return samples;
}

// Largest differences so far and the names of the weights that they belong to.
struct Differences {
  void add(const std::string& kind, double difference, const std::string& name = "") {
    const auto known = largest.find(kind);
    if (known != largest.end() && (difference <= known->second || std::isnan(known->second))) return;
    largest[kind] = difference;
    worst[kind] = name;
  }
  void add_values(const std::string& kind, double got, double want, const std::string& name = "") {
    add(kind, std::abs(got - want) / std::max(std::abs(want), 1e-300), name);
  }
  std::map<std::string, double> largest;
  std::map<std::string, std::string> worst;
};

class Comparison {
 public:
  explicit Comparison(const hero::Config& config)
      : config_(config),
        model_(config),
        optimizer_(model_.parameters(), config.optim),
        balance_(hero::BalanceState::uniform(model_.layout().layers(), model_.layout().experts())),
        step_(model_, optimizer_, balance_) {
    small::perturb(model_, 0.1, static_cast<uint64_t>(config.train.seed) + 100);
    expected_.emplace(config, oracle::copy_weights(model_.parameters()));
  }

  void step(int64_t step) {
    const auto& t = config_.train;
    const auto samples = random_samples(config_, step);
    step_.begin(/*busy=*/0, /*norms=*/true);
    step_.run(t.global_batch / t.micro_batch, [&](int64_t i) {
      const auto part = [&](const at::Tensor& x) {
        return x.slice(0, i * t.micro_batch, (i + 1) * t.micro_batch).contiguous();
      };
      return hero::MicroBatch{part(samples.tokens),
                              {.training = true,
                               .seed = static_cast<uint64_t>(t.seed),
                               .step = step,
                               .first_token = i * t.micro_batch * t.sequence,
                               .starts_BS = part(samples.starts)}};
    });
    std::map<std::string, at::Tensor> gradients;
    for (const auto& p : model_.parameters().all()) {
      for (const auto& part : p.parts) {
        if (p.leaf.requires_grad()) gradients[part.name] = small::gradient(p, part).clone();
      }
    }
    step_.update(step, hero::learning_rate(config_.optim, step, t.steps));
    const auto want = expected_->step(step, samples.tokens, samples.numbers);
    compare_sums(want);
    compare_norms(want.norms);
    compare_gradients(gradients, want.gradients);
    for (const auto& [name, values] : model_.parameters().state_dict())
      found.add(name.ends_with("_bias") ? "bias" : "weights",
                small::relative_error(values, expected_->weights().at(name)), name);
    found.add("shares", small::relative_error(balance_.shares_LE, expected_->shares_LE()));
  }

  // Evaluation: eval_capacity_factor, no jitter, no forced balance.
  void evaluate() {
    const auto tokens = random_samples(config_, 0).tokens.slice(0, 0, config_.train.micro_batch).contiguous();
    const auto output = model_.forward(tokens);
    const auto want = oracle::forward(config_, expected_->weights(), tokens, {.training = false});
    found.add("evaluation",
              small::relative_error(model_.logits(output.hidden_TD, tokens.size(0)), want.logits));
  }

  Differences found;

 private:
  void compare_sums(const oracle::Training::Step& want) {
    const auto got = step_.read();
    found.add_values("loss", got.loss, want.loss, "total");
    found.add_values("loss", got.lm, want.lm, "lm");
    found.add_values("loss", got.mtp, want.mtp, "mtp");
    found.add_values("loss", got.balance, want.balance, "balance");
    found.add_values("loss", got.z, want.z, "z");
    found.add_values("loss", got.coupling, want.coupling, "coupling");
    found.add_values("gradient_norm", got.gradient_norm, want.gradient_norm);
  }

  void compare_norms(std::map<std::string, double> want) {
    step_.read().norms->for_each(
        [&](const std::string& key, const std::string& component, int64_t layer, std::optional<double> got) {
          const auto name = key + "/" + component + "/" + std::to_string(layer);
          const auto expected = want.extract(name);
          TORCH_CHECK(got.has_value() == !expected.empty(), name, ": found ", got.has_value(), ", expected ",
                      !expected.empty());
          if (got) found.add_values("norms", *got, expected.mapped(), name);
        });
    TORCH_CHECK(want.empty(), "no value for ", want.begin()->first);
  }

  // Relative to each weight's largest gradient, at least 1e-6 of the largest of all weights: gradients that
  // are zero up to rounding cannot be compared.
  void compare_gradients(const std::map<std::string, at::Tensor>& got,
                         const std::map<std::string, at::Tensor>& want) {
    TORCH_CHECK(got.size() == want.size(), "expected ", want.size(), " gradients, got ", got.size());
    double all = 0;
    for (const auto& [name, g] : want) all = std::max(all, g.abs().max().item<double>());
    for (const auto& [name, g] : want) {
      const double scale = std::max({g.abs().max().item<double>(), 1e-6 * all, 1e-300});
      found.add("gradients", (got.at(name) - g).abs().max().item<double>() / scale, name);
    }
  }

  hero::Config config_;
  hero::Transformer model_;
  hero::Optimizer optimizer_;
  hero::BalanceState balance_;
  hero::TrainStep step_;
  std::optional<oracle::Training> expected_;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto config = read_config(argc, argv);
    at::set_num_threads(static_cast<int>(std::max<int64_t>(config.train.threads, 1)));
    Comparison comparison(config);
    for (int64_t step = 1; step <= config.train.steps; ++step) comparison.step(step);
    comparison.evaluate();
    const nlohmann::ordered_json line = {{"differences", comparison.found.largest},
                                         {"worst", comparison.found.worst}};
    std::printf("%s\n", line.dump().c_str());
    return 0;
  } catch (const hero::UserError& error) {
    std::fprintf(stderr, "oracle_case: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "oracle_case: %s\n", error.what());
    return 1;
  }
}
