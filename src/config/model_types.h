#pragma once
// What distinguishes the model types, declared once; all other code queries it.
#include <array>
#include <string_view>

#include "config/choices.h"

namespace hero {

/// RMSNorm of queries and keys in grouped-query attention.
enum class QkNorm {
  kNone,
  kHead,       ///< of each head
  kProjection  ///< of all heads of a token together
};

/// Names of the matrices of an expert in checkpoints.
struct ExpertNames {
  std::string_view gate, up, down;
};

/// Properties of a model type. Source: the model's configuration and modeling code in transformers.
struct ModelTypeInfo {
  std::string_view class_prefix;  ///< of its classes in transformers: "Qwen3Moe"
  QkNorm qk_norm;                 ///< not read for multi-head latent attention
  bool has_dense_layers;          ///< layers without experts are possible
  bool always_norm_topk_prob;     ///< has no option norm_topk_prob
  const char* experts_key;        ///< of the number of experts in config.json
  std::string_view moe_block;     ///< in checkpoints: "mlp"
  ExpertNames expert;
  // Values of a config.json without the key:
  double rms_norm_eps, rope_theta, router_aux_loss_coef;
};

inline const ModelTypeInfo& model_type_info(ModelType type) {
  static constexpr ExpertNames kProjections = {"gate_proj", "up_proj", "down_proj"};
  static constexpr auto kTypes = std::to_array<ModelTypeInfo>({
      {"Qwen3Moe", QkNorm::kHead, true, false, "num_experts", "mlp", kProjections, 1e-6, 1e4, 0.001},
      {"DeepseekV3", QkNorm::kNone, true, false, "n_routed_experts", "mlp", kProjections, 1e-6, 1e4, 0.001},
      {"Olmoe", QkNorm::kProjection, false, false, "num_experts", "mlp", kProjections, 1e-5, 1e4, 0.01},
      {"Mixtral",
       QkNorm::kNone,
       false,
       true,
       "num_local_experts",
       "block_sparse_moe",
       {"w1", "w3", "w2"},
       1e-5,
       1e6,
       0.001},
  });
  return kTypes.at(static_cast<size_t>(type));
}

}  // namespace hero
