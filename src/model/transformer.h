#pragma once
// The language model: embedding, decoder layers, final norm. The output projection belongs to the loss, which
// never holds all logits.
#include <functional>
#include <memory>
#include <optional>
#include <variant>

#include "config/config.h"
#include "model/attention.h"
#include "model/moe.h"

namespace hero {

/// x + attention(norm(x)), then x + feed-forward(norm(x)); the feed-forward part is dense or a MoE.
class DecoderLayer {
 public:
  /// `i` counts decoder layers from 0; `l` MoE layers from 1, 0 for a dense one.
  DecoderLayer(Parameters& parameters, int64_t i, int64_t l, const Config& config,
               const HistoryLayout& layout, const ModelPart& part);

  struct Output {
    at::Tensor x;                    ///< [B, S, D]
    std::optional<Routing> routing;  ///< of a MoE layer
  };
  Output operator()(const at::Tensor& x, const RotaryTable& rotary, RoutingHistory& history,
                    const Position& position, const Extension* extension) const;

  const Moe* moe() const { return moe_ ? &*moe_ : nullptr; }

 private:
  double eps_;
  at::Tensor input_norm_, post_norm_;
  std::variant<std::monostate, GroupedQueryAttention, LatentAttention> attention_;
  std::optional<FeedForward> dense_;
  std::optional<Moe> moe_;
};

class Transformer {
 public:
  /// Builds and initialises every weight from config.train.seed. config.model.vocab_size must be set.
  explicit Transformer(const Config& config, at::Device device = at::kCPU);
  /// Of it, what `part` says. forward, extend and logits need all of it.
  Transformer(const Config& config, at::Device device, ModelPart part);
  Transformer(const Transformer&) = delete;

  struct Output {
    at::Tensor hidden_TD;           ///< after the final norm; [B, S, D] without it where a chunk ends earlier
    std::vector<Routing> routings;  ///< of every MoE layer, l ascending
  };
  /// tokens int64 [B, S] on the model's device, each in [0, V). `recompute`: keep only each layer's input and
  /// replay the layer in the backward pass; gradients are bit-equal. `states` receives the embedding and
  /// every layer's output, each [B, S, D].
  Output forward(const at::Tensor& tokens_BS, const Position& position = {}, bool recompute = false,
                 std::vector<at::Tensor>* states = nullptr) const;

  /// What a chunk remembers of a micro-batch: room for its routing and for that of earlier chunks.
  std::shared_ptr<RoutingHistory> new_history(const Chunk& chunk, int64_t tokens) const;
  /// The layers of part().chunks[held]: from tokens [B, S] int64 or the chunk before's [B, S, D].
  /// `routed(l)` is called as soon as layer l has written its slot.
  Output run_chunk(size_t held, const at::Tensor& input, const std::shared_ptr<RoutingHistory>& history,
                   const Position& position, bool recompute,
                   const std::function<void(int64_t l)>& routed = {},
                   std::vector<at::Tensor>* states = nullptr) const;

  /// Continues sequences: counts[i] tokens of sequence i in tokens [T], one sequence after the other, follow
  /// the positions that caches[i] holds, and it grows. A new sequence has an empty cache. Returns the hidden
  /// states [T, D] after the final norm.
  at::Tensor extend(const at::Tensor& tokens_T, const std::vector<KeyValueCache*>& caches,
                    const std::vector<int64_t>& counts) const;

  /// Logits [B, S, V] in fp32 (fp64); for evaluation and generation.
  at::Tensor logits(const at::Tensor& hidden_TD, int64_t batch) const;

  const at::Tensor& head() const { return head_; }
  at::Device device() const { return parameters_.device(); }
  Parameters& parameters() { return parameters_; }
  const Parameters& parameters() const { return parameters_; }
  const HistoryLayout& layout() const { return layout_; }
  const Config& config() const { return config_; }
  /// Those of this part.
  const std::vector<DecoderLayer>& layers() const { return layers_; }
  const ModelPart& part() const { return part_; }

 private:
  Config config_;
  ModelPart part_;
  HistoryLayout layout_;
  Parameters parameters_;
  at::Tensor embedding_, norm_, head_, rotary_frequencies_;
  std::vector<DecoderLayer> layers_;
};

}  // namespace hero
