#pragma once
// The language model: embedding, decoder layers, final norm, multi-token prediction modules. The loss applies
// the output projection, so that the full logits are never materialized.
#include <functional>
#include <memory>
#include <vector>

#include "config/config.h"
#include "model/decoder_layer.h"
#include "model/mtp.h"

namespace hero {

class Transformer {
 public:
  /// Creates and initializes all weights from config.train.seed. config.model.vocab_size must be set.
  explicit Transformer(const Config& config, at::Device device = at::kCPU);
  /// Creates one shard of the model. forward, forward_from, extend and logits need the whole model.
  Transformer(const Config& config, at::Device device, ModelShard shard,
              InitialValues initial = InitialValues::kSampled);
  Transformer(const Transformer&) = delete;

  struct Output {
    at::Tensor hidden_TD;           ///< after the final norm; [B, S, D] before it unless the chunk is last
    std::vector<Routing> routings;  ///< of every MoE layer, in order
    std::vector<at::Tensor> modules_TD = {};  ///< of every module: the input of the output projection
    at::Tensor embedded = {};  ///< of the first chunk of several: the input of the modules, if they run
  };
  /// tokens int64 [B, S] on the model's device, each in [0, V). `recompute`: save only each layer's input and
  /// run the layer again in the backward pass; gradients are bitwise equal. `hidden_states` receives the
  /// embedding and every layer's output, each [B, S, D]. The multi-token prediction modules run in training
  /// and with `context.modules`.
  Output forward(const at::Tensor& tokens_BS, const ForwardContext& context = {}, bool recompute = false,
                 std::vector<at::Tensor>* hidden_states = nullptr) const;

  /// Resumes a forward pass at decoder layer `first` with its input x [B, S, D] and the history of the layers
  /// before it. Returns the hidden states [T, D] after the final norm.
  at::Tensor forward_from(size_t first, at::Tensor x, RoutingHistory& history,
                          const ForwardContext& context) const;

  /// Routing history of a micro-batch, with slots for this chunk's layers and the earlier ones they need.
  std::shared_ptr<RoutingHistory> new_history(const ModelChunk& chunk, int64_t tokens) const;
  struct ChunkInput {
    at::Tensor x;              ///< tokens [B, S] int64, or the previous chunk's output [B, S, D]
    at::Tensor embedded = {};  ///< of the last chunk of several: the first chunk's Output::embedded
  };
  /// Whether the multi-token prediction modules run.
  bool runs_modules(const ForwardContext& context) const {
    return (context.training || context.modules) && config_.model.num_nextn_predict_layers > 0;
  }
  /// Runs the layers of shard().chunks[local_chunk]. Calls `on_routed(l)` as soon as layer l has written its
  /// history slot.
  Output run_chunk(size_t local_chunk, const ChunkInput& input,
                   const std::shared_ptr<RoutingHistory>& history, const ForwardContext& context,
                   bool recompute, const std::function<void(int64_t l)>& on_routed = {},
                   std::vector<at::Tensor>* hidden_states = nullptr) const;

  /// Kept between calls of `extend`.
  struct ExtensionBuffers {
    std::shared_ptr<RoutingHistory> history;  ///< of the latest call; used again by one with as many tokens
    RotaryCache rotary;
  };
  /// Prefill and decode: tokens [T] are counts[i] tokens of each sequence i, sequences concatenated. They
  /// follow the positions in caches[i] and are added to it; a new sequence has an empty cache. Returns the
  /// hidden states [T, D] after the final norm.
  at::Tensor extend(const at::Tensor& tokens_T, const std::vector<KeyValueCache*>& caches,
                    const std::vector<int64_t>& counts, ExtensionBuffers& buffers) const;

  /// Logits [B, S, V] in fp32 (fp64); for evaluation and generation.
  at::Tensor logits(const at::Tensor& hidden_TD, int64_t batch) const;

  const at::Tensor& head() const { return head_; }
  at::Device device() const { return parameters_.device(); }
  Parameters& parameters() { return parameters_; }
  const Parameters& parameters() const { return parameters_; }
  const HistoryLayout& layout() const { return layout_; }
  const Config& config() const { return config_; }
  /// Layers of this shard, without those of the modules.
  const std::vector<DecoderLayer>& layers() const { return layers_; }
  const std::vector<MtpModule>& modules() const { return modules_; }
  /// MoE blocks of this shard, including those of the modules, in order.
  std::vector<const Moe*> moe_blocks() const;
  const ModelShard& shard() const { return shard_; }

 private:
  /// Positions [S], or [B*S] if they restart with each document, for input [B, S] or [B, S, D].
  at::Tensor positions(const at::Tensor& input, const ForwardContext& context) const;
  /// Runs the modules on the embedded tokens [B, S, D] after the main model, whose output it extends.
  void run_modules(const at::Tensor& embedded, const RotaryTable& rotary,
                   const std::shared_ptr<RoutingHistory>& history, const ForwardContext& context,
                   bool recompute, Output& output) const;

  Config config_;
  ModelShard shard_;
  HistoryLayout layout_;
  Parameters parameters_;
  at::Tensor embedding_, norm_, head_, rotary_frequencies_;
  std::vector<DecoderLayer> layers_;
  std::vector<MtpModule> modules_;
};

}  // namespace hero
