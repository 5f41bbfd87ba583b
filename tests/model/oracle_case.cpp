// oracle_case [--config FILE ...] [--scale WEIGHT FACTOR] [--section.key=value ...]: trains a small fp64
// model on random tokens for train.steps steps, with hero and with the reference implementation. Prints the
// largest relative differences as one JSON line. --scale multiplies a weight's gradients in hero, an error to
// be found.
//
// A gradient may be zero, or much smaller than the terms that cancel in it, such as a router's with a single
// expert of normalized weight 1: both implementations compute rounding errors then, which optimizers divide
// by their own size. A second reference has errors of this magnitude in its gradients; what differs less than
// the two references counts as equal.
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

// Rounding errors of a gradient's terms, relative to the largest gradient of the model.
constexpr double kRounding = 1e-15;

struct Scale {
  std::string weight;
  double factor = 1;
};

hero::Config read_config(int argc, char** argv, Scale& scale) {
  std::vector<std::string> files, flags;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--config" && i + 1 < argc) {
      files.emplace_back(argv[++i]);
    } else if (word == "--scale" && i + 2 < argc) {
      scale.weight = argv[++i];
      scale.factor = std::stod(argv[++i]);
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
  // `rounded`: the second reference's.
  void add_values(const std::string& kind, double got, double want, double rounded, const std::string& name) {
    add_difference(kind, std::abs(got - want), std::abs(rounded - want), std::abs(want), name);
  }
  // By the largest element.
  void add_tensors(const std::string& kind, const at::Tensor& got, const at::Tensor& want,
                   const at::Tensor& rounded, const std::string& name = "") {
    const auto largest = [](const at::Tensor& t) { return t.detach().abs().max().item<double>(); };
    add_difference(kind, largest(got.to(at::kDouble) - want), largest(rounded - want), largest(want), name);
  }
  std::map<std::string, double> largest;
  std::map<std::string, std::string> worst;

 private:
  void add_difference(const std::string& kind, double difference, double rounding, double size,
                      const std::string& name) {
    // Not std::max, which would drop NaN.
    const double beyond = difference <= rounding ? 0 : difference - rounding;
    add(kind, beyond / std::max(size, 1e-300), name);
  }
};

class Comparison {
 public:
  Comparison(const hero::Config& config, Scale scale)
      : config_(config),
        scale_(std::move(scale)),
        model_(config),
        optimizer_(model_.parameters(), config.optim),
        balance_(hero::BalanceState::uniform(model_.layout().layers(), model_.layout().experts())),
        step_(model_, optimizer_, balance_) {
    small::perturb(model_, 0.1, static_cast<uint64_t>(config.train.seed) + 100);
    expected_.emplace(config, oracle::copy_weights(model_.parameters()));
    rounded_.emplace(config, oracle::copy_weights(model_.parameters()), kRounding);
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
        if (!p.leaf.requires_grad()) continue;
        auto gradient = small::gradient(p, part);
        if (part.name == scale_.weight) gradient.mul_(scale_.factor);
        gradients[part.name] = gradient.clone();
      }
    }
    step_.update(step, hero::learning_rate(config_.optim, step, t.steps));
    const auto want = expected_->step(step, samples.tokens, samples.numbers);
    const auto rounded = rounded_->step(step, samples.tokens, samples.numbers);
    compare_sums(want, rounded);
    compare_norms(want.norms, rounded.norms);
    compare_layers(want.layers, rounded.layers);
    TORCH_CHECK(gradients.size() == want.gradients.size(), "expected ", want.gradients.size(),
                " gradients, got ", gradients.size());
    for (const auto& [name, gradient] : want.gradients)
      found.add_tensors("gradients", gradients.at(name), gradient, rounded.gradients.at(name), name);
    for (const auto& [name, values] : model_.parameters().state_dict())
      found.add_tensors(name.ends_with("_bias") ? "bias" : "weights", values, expected_->weights().at(name),
                        rounded_->weights().at(name), name);
    found.add("shares", small::relative_error(balance_.shares_LE, expected_->shares_LE()));
  }

  // Evaluation: eval_capacity_factor, no jitter, no forced balance.
  void evaluate() {
    const auto tokens = random_samples(config_, 0).tokens.slice(0, 0, config_.train.micro_batch).contiguous();
    const auto output = model_.forward(tokens);
    const auto logits = [&](const oracle::Training& training) {
      return oracle::forward(config_, training.weights(), tokens, {.training = false}).logits;
    };
    found.add_tensors("evaluation", model_.logits(output.hidden_TD, tokens.size(0)), logits(*expected_),
                      logits(*rounded_));
  }

  Differences found;

 private:
  void compare_sums(const oracle::Training::Step& want, const oracle::Training::Step& rounded) {
    const auto got = step_.read();
    found.add_values("loss", got.loss, want.loss, rounded.loss, "total");
    found.add_values("loss", got.lm, want.lm, rounded.lm, "lm");
    found.add_values("loss", got.mtp, want.mtp, rounded.mtp, "mtp");
    found.add_values("loss", got.balance, want.balance, rounded.balance, "balance");
    found.add_values("loss", got.z, want.z, rounded.z, "z");
    found.add_values("loss", got.coupling, want.coupling, rounded.coupling, "coupling");
    found.add_values("gradient_norm", got.gradient_norm, want.gradient_norm, rounded.gradient_norm, "");
  }

  void compare_norms(std::map<std::string, double> want, const std::map<std::string, double>& rounded) {
    step_.read().norms->for_each(
        [&](const std::string& key, const std::string& component, int64_t layer, std::optional<double> got) {
          const auto name = key + "/" + component + "/" + std::to_string(layer);
          const auto expected = want.extract(name);
          TORCH_CHECK(got.has_value() == !expected.empty(), name, ": found ", got.has_value(), ", expected ",
                      !expected.empty());
          if (got) found.add_values("norms", *got, expected.mapped(), rounded.at(name), name);
        });
    TORCH_CHECK(want.empty(), "no value for ", want.begin()->first);
  }

  void compare_layers(const std::vector<oracle::LayerSums>& want,
                      const std::vector<oracle::LayerSums>& rounded) {
    const auto got = step_.read().layers.totals();
    TORCH_CHECK(got.size() == want.size(), "expected ", want.size(), " layers, got ", got.size());
    for (size_t i = 0; i < want.size(); ++i) {
      auto expected = want[i].metrics();
      for (const auto& metric : hero::layer_metrics()) {
        const auto name = metric.tag(static_cast<int64_t>(i) + 1);
        const auto value = metric.value(got[i]);
        TORCH_CHECK(value.has_value() == expected.contains(metric.key), name, ": found ", value.has_value());
        if (value)
          found.add_values("layers", *value, expected.at(metric.key), rounded[i].metrics().at(metric.key),
                           name);
        expected.erase(metric.key);
      }
      TORCH_CHECK(expected.empty(), "no value for ", expected.begin()->first);
    }
  }

  hero::Config config_;
  Scale scale_;
  hero::Transformer model_;
  hero::Optimizer optimizer_;
  hero::BalanceState balance_;
  hero::TrainStep step_;
  std::optional<oracle::Training> expected_, rounded_;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    Scale scale;
    const auto config = read_config(argc, argv, scale);
    at::set_num_threads(static_cast<int>(std::max<int64_t>(config.train.threads, 1)));
    Comparison comparison(config, scale);
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
