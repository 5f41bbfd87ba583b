#include "perf/process_memory.h"

#include <algorithm>

#include "config/mtp_layers.h"
#include "io/cores.h"
#include "model/counts.h"
#include "perf/history_costs.h"
#include "perf/muon_cost.h"

namespace hero {
namespace {

// Resident memory of `hero train` without a model: LibTorch, its libraries' memory pools, logs. Measured with
// torch 2.11 on x86-64, one or two threads, bf16 or fp32.
constexpr double kProcess = 150.0 * (1 << 20);

// Memory at one point of the step, besides weights and optimizer.
struct Usage {
  double gradients = 0, activations = 0, workspace = 0;
  double sum() const { return gradients + activations + workspace; }
};

class StepMemory {
 public:
  explicit StepMemory(const Config& config)
      : config_(config),
        m_(config.model),
        w_(config),
        threads_(to_double(config.train.threads > 0 ? config.train.threads : available_cores())),
        numbers_(moe_layer_numbers_with_modules(m_)) {
    const auto visible = visible_counts(config);
    for (int64_t i = 0; i < layers(); ++i) {
      double trained = 0;
      for (const CostItem& item : layer_costs(config, i, visible[i])) trained += item.trained;
      layer_trained_.push_back(trained);
    }
    for (const CostItem& item : model_costs(config)) {
      weights_ += item.parameters;
      trained_ += item.trained;
    }
  }

  double weights() const { return weights_; }
  double trained() const { return trained_; }

  Usage peak() const {
    Usage peak = loss();
    const auto consider = [&](const Usage& usage) {
      if (usage.sum() > peak.sum()) peak = usage;
    };
    consider(loss_backward());
    for (int64_t i = 0; i < layers(); ++i) consider(layer_backward(i));
    consider({.gradients = trained_ * w_.accum, .workspace = accumulates() ? head_gradient() : 0});
    return peak;
  }

 private:
  int64_t layers() const { return std::ssize(numbers_); }
  double tokens() const { return to_double(config_.train.micro_batch * config_.train.sequence); }
  double table() const { return to_double(m_.vocab_size * m_.hidden_size); }
  double head_gradient() const { return head_gradient_bytes(config_); }
  bool bf16() const { return config_.train.dtype == Dtype::kBf16; }
  // Whether later micro-batches add to existing gradients.
  bool accumulates() const { return config_.train.global_batch > config_.train.micro_batch; }
  double existing_gradients() const { return accumulates() ? trained_ * w_.accum : 0; }

  double saved(int64_t i) const { return saved_layer_bytes(config_, i, tokens()); }
  double routing(int64_t i) const { return numbers_[i] > 0 ? routing_bytes(config_, tokens()) : 0; }
  double all_saved() const {
    double sum = 0;
    for (int64_t i = 0; i < layers(); ++i) sum += saved(i);
    return sum;
  }

  double heads() const {
    return head_activation_bytes(config_, tokens()) +
           to_double(m_.num_nextn_predict_layers) * mtp_activation_bytes(config_, tokens());
  }

  // Cross-entropy works on chunks of the logits. bf16: packed weights for two GEMMs, the chunk's gradient in
  // bf16, and fp32 rows per thread. Otherwise: several fp32 copies of the chunk and a GEMM output to add.
  Usage loss() const {
    const double v = to_double(m_.vocab_size), d = to_double(m_.hidden_size);
    const double fused =
                     2 * table() * 2 + std::min(512.0, tokens()) * (2 * v + d) * 2 + threads_ * 64 * v * 4,
                 plain = std::min(256.0, tokens()) * 5 * v * w_.accum + head_gradient();
    return {existing_gradients(), all_saved() + heads(), bf16() ? fused : plain};
  }

  // The output projection's gradient and its copy scaled by the loss gradient.
  Usage loss_backward() const { return {existing_gradients(), all_saved() + heads(), head_gradient()}; }

  // Later layers are done; their gradients remain, and their routing, which the metrics read.
  Usage layer_backward(int64_t i) const {
    Usage usage{.gradients = accumulates() ? existing_gradients() : head_gradient(),
                .workspace = workspace(i)};
    for (int64_t j = 0; j < layers(); ++j) {
      usage.activations += j <= i ? saved(j) : routing(j);
      if (j > i && !accumulates()) usage.gradients += layer_trained_[j] * w_.accum;
    }
    if (config_.train.recompute) usage.activations += layer_activation_bytes(config_, i, tokens());
    return usage;
  }

  // Layer i's feed-forward part: gradients of its rows, its new weight gradients, and in bf16 the transposed
  // or packed operands of both weight gradients and packed weights: of all experts if each expert is split
  // over threads (ops/cpu/experts.cpp), else of the active ones. Frozen weights have no gradients.
  double workspace(int64_t i) const {
    const bool moe = numbers_[i] > 0;
    const double d = to_double(m_.hidden_size),
                 f = to_double(moe ? m_.moe_intermediate_size : m_.intermediate_size),
                 e = moe ? to_double(m_.num_experts) : 1;
    const double rows = tokens() * (moe ? to_double(m_.num_experts_per_tok) : 1), padded = rows + 16 * e;
    const double weights = 3 * e * d * f;
    const bool trained = config_.train.trains_all();
    double bytes = 2 * tokens() * d * w_.operand + rows * d * w_.operand + (trained ? weights * w_.accum : 0);
    if (bf16()) {
      const double active = rows / e > std::max(64.0, rows / (8 * threads_)) ? e : std::min(e, threads_);
      bytes += ((trained ? padded * (2 * d + 3 * f) : 0) + weights) * 2 * active / e;
    }
    return bytes;
  }

  const Config& config_;
  const ModelConfig& m_;
  ElementSizes w_;
  double threads_;
  std::vector<int64_t> numbers_;
  std::vector<double> layer_trained_;
  double weights_ = 0, trained_ = 0;
};

}  // namespace

std::vector<MemoryItem> process_memory(const Config& config) {
  const ElementSizes w(config);
  const StepMemory step(config);
  const Usage peak = step.peak();
  const double tokens = to_double(config.train.micro_batch * config.train.sequence);
  // The last checkpoint is written directly from the tensors.
  const bool copies = config.checkpoint.asynchronous && config.checkpoint.every > 0 &&
                      config.checkpoint.every < config.train.steps;
  const bool in_memory = config.optim.offload_folder.empty();
  const double masters = w.operand == w.accum ? 0 : step.weights() * w.accum,
               moments = (2 * step.trained() - muon_model_cost(config).weights) * w.accum;
  return {{"weights", step.weights() * w.operand},
          {"master weights", in_memory ? masters : 0},
          {"optimizer moments", in_memory ? moments : 0},
          {"gradients", peak.gradients},
          {"activations", peak.activations},
          {"routing history", HistoryCosts(config).bytes(tokens, {}, 0)},
          {"operators' workspace", peak.workspace},
          {"copy for checkpoints", copies ? step.weights() * w.accum + moments : 0},
          {"program and libraries", kProcess}};
}

}  // namespace hero
