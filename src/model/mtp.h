#pragma once
// Multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2): modules that follow the main model one
// after another. Module k, from 1, predicts token i + k + 1 at position i. Embedding and output head are
// those of the main model.
#include <memory>

#include "model/decoder_layer.h"

namespace hero {

class MtpModule {
 public:
  MtpModule(Parameters& parameters, int64_t k, const Config& config, const HistoryLayout& layout,
            const ModelShard& shard);

  struct Output {
    at::Tensor
        hidden;  ///< [B, S, D] after shared_head.norm: the input of the output head and of module k + 1
    Routing routing;
  };
  /// decoder layer(eh_proj [enorm(embedding of token i + k); hnorm(hidden)]). `embedded`: the embedded tokens
  /// [B, S, D]; the last k positions, which have no target, get zeros. `hidden`: the output of the preceding
  /// module, or of the main model after its final norm. `recompute`: as in Transformer::forward.
  Output operator()(const at::Tensor& embedded, const at::Tensor& hidden, const RotaryTable& rotary,
                    const std::shared_ptr<RoutingHistory>& history, const ForwardContext& context,
                    bool recompute) const;

  const DecoderLayer& layer() const { return layer_; }

 private:
  int64_t k_;
  double eps_;
  at::Tensor embedding_norm_, hidden_norm_, projection_;
  DecoderLayer layer_;
  at::Tensor head_norm_;
};

/// Targets of module k, int64 [B*S], -1 if there is none: at position i token i + k + 1 of labels [B, S+1],
/// whose untrained tokens are -1. The last k positions have none. `starts_BS`: if defined, documents as in
/// ForwardContext; then the module's last input, token i + k, must be in the document of token i.
at::Tensor mtp_targets(const at::Tensor& labels, int64_t k, const at::Tensor& starts_BS);

/// Name of a weight of module k, from 1, besides those of its decoder layer.
std::string mtp_weight_name(const ModelConfig& model, int64_t k, const std::string& weight);

}  // namespace hero
