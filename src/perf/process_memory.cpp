#include "perf/process_memory.h"

#include <algorithm>
#include <thread>

#include "model/counts.h"

namespace hero {
namespace {

// Resident memory of `hero train` on a model of no size: LibTorch's code and tables, the pools of its
// libraries, the logs. Seen with torch 2.11 on x86-64, one thread or two, bf16 or fp32.
constexpr double kProcess = 150.0 * (1 << 20);

double number(int64_t n) { return static_cast<double>(n); }

// A moment of the step: what it holds besides weights and optimizer.
struct Moment {
  double gradients = 0, activations = 0, workspace = 0;
  double sum() const { return gradients + activations + workspace; }
};

class Step {
 public:
  explicit Step(const Config& config)
      : config_(config), m_(config.model), w_(config), numbers_(moe_numbers(m_)) {
    const auto visible = visible_counts(config);
    for (int64_t i = 0; i < m_.num_hidden_layers; ++i) {
      double weights = 0;
      for (const Part& part : layer_parts(config, i, visible[i])) weights += part.parameters;
      layer_weights_.push_back(weights);
      weights_ += weights;
    }
    weights_ += table() + number(m_.hidden_size) + (m_.tie_word_embeddings ? 0 : table());
  }

  double weights() const { return weights_; }

  Moment fullest() const {
    Moment most = loss();
    const auto consider = [&](const Moment& moment) {
      if (moment.sum() > most.sum()) most = moment;
    };
    consider(loss_backward());
    for (int64_t i = 0; i < m_.num_hidden_layers; ++i) consider(layer_backward(i));
    consider({.gradients = weights_ * w_.wide, .workspace = summed() ? table() * w_.wide : 0});
    return most;
  }

 private:
  double tokens() const { return number(config_.train.micro_batch * config_.train.sequence); }
  double table() const { return number(m_.vocab_size * m_.hidden_size); }
  bool bf16() const { return config_.train.dtype == "bf16"; }
  double threads() const {
    return config_.train.threads > 0 ? number(config_.train.threads)
                                     : number(std::thread::hardware_concurrency());
  }
  // Later micro-batches add to gradients that are there.
  bool summed() const { return config_.train.global_batch > config_.train.micro_batch; }
  double present() const { return summed() ? weights_ * w_.wide : 0; }

  // What layer i keeps from its forward to its backward pass.
  double kept(int64_t i) const {
    if (!config_.train.recompute) return layer_activation_bytes(config_, i, tokens());
    return tokens() * number(m_.hidden_size) * w_.operand + routing(i);
  }
  double routing(int64_t i) const { return numbers_[i] > 0 ? routing_bytes(config_, tokens()) : 0; }
  double all_kept() const {
    double sum = 0;
    for (int64_t i = 0; i < m_.num_hidden_layers; ++i) sum += kept(i);
    return sum;
  }

  // Cross-entropy holds a chunk of the logits: in bf16 packed weights for two products, the chunk's gradient
  // in bf16 and fp32 rows for every thread; else some copies of the chunk in fp32 and a product to be added.
  Moment loss() const {
    const double v = number(m_.vocab_size), d = number(m_.hidden_size);
    const double fused =
                     2 * table() * 2 + std::min(512.0, tokens()) * (2 * v + d) * 2 + threads() * 64 * v * 4,
                 plain = std::min(256.0, tokens()) * 5 * v * w_.wide + table() * w_.wide;
    return {present(), all_kept() + head_activation_bytes(config_, tokens()), bf16() ? fused : plain};
  }

  // The output projection's gradient and its product with the loss's own.
  Moment loss_backward() const {
    return {present(), all_kept() + head_activation_bytes(config_, tokens()), table() * w_.wide};
  }

  // Later layers are done and have left their routing, which the logs read, and their gradients.
  Moment layer_backward(int64_t i) const {
    Moment moment{.gradients = summed() ? present() : table() * w_.wide, .workspace = workspace(i)};
    for (int64_t j = 0; j < m_.num_hidden_layers; ++j) {
      moment.activations += j <= i ? kept(j) : routing(j);
      if (j > i && !summed()) moment.gradients += layer_weights_[j] * w_.wide;
    }
    if (config_.train.recompute) moment.activations += layer_activation_bytes(config_, i, tokens());
    return moment;
  }

  // Layer i's feed-forward part: gradients of its rows, its weights' new gradients, and in bf16 the operands
  // of both weight gradients, transposed or packed, beside the packed weights: of all experts where each is
  // shared by the threads (ops/cpu/experts.cpp), else of those at work.
  double workspace(int64_t i) const {
    const bool moe = numbers_[i] > 0;
    const double d = number(m_.hidden_size),
                 f = number(moe ? m_.moe_intermediate_size : m_.intermediate_size),
                 e = moe ? number(m_.num_experts) : 1;
    const double rows = tokens() * (moe ? number(m_.num_experts_per_tok) : 1), padded = rows + 16 * e;
    const double weights = 3 * e * d * f;
    double bytes = 2 * tokens() * d * w_.operand + rows * d * w_.operand + weights * w_.wide;
    if (bf16()) {
      const double at_work = rows / e > std::max(64.0, rows / (8 * threads())) ? e : std::min(e, threads());
      bytes += (padded * (2 * d + 3 * f) + weights) * 2 * at_work / e;
    }
    return bytes;
  }

  const Config& config_;
  const ModelConfig& m_;
  Widths w_;
  std::vector<int64_t> numbers_;
  std::vector<double> layer_weights_;
  double weights_ = 0;
};

}  // namespace

std::vector<MemoryPart> process_memory(const Config& config) {
  const Widths w(config);
  const Step step(config);
  const Moment most = step.fullest();
  const double tokens = number(config.train.micro_batch * config.train.sequence);
  // The last checkpoint is written from the tensors themselves.
  const bool copies = config.checkpoint.asynchronous && config.checkpoint.every > 0 &&
                      config.checkpoint.every < config.train.steps;
  return {{"weights", step.weights() * w.operand},
          {"master weights", w.operand == w.wide ? 0 : step.weights() * w.wide},
          {"optimizer moments", 2 * step.weights() * w.wide},
          {"gradients", most.gradients},
          {"activations", most.activations},
          {"routing history", history_bytes(config, tokens, {}, 0)},
          {"operators' workspace", most.workspace},
          {"copy for checkpoints", copies ? 3 * step.weights() * w.wide : 0},
          {"program and libraries", kProcess}};
}

}  // namespace hero
