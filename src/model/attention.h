#pragma once
// Self-attention of both model families.
#include "config/config.h"
#include "model/layers.h"

namespace hero {

struct AttentionOptions {
  /// If defined, int64 [B, S]: tokens attend only to positions from the first of their document on.
  at::Tensor starts_BS = {};
  at::Tensor max_logit = {};  ///< if defined, an fp64 scalar that is raised to the largest attention logit
};

/// Grouped-query attention with RMSNorm of queries and keys, of every head (Qwen3), of all heads
/// together (OLMoE) or without (Mixtral).
class GroupedQueryAttention {
 public:
  GroupedQueryAttention(Parameters& parameters, const std::string& prefix, const ModelConfig& model);
  /// x [T, D] of `batch` sequences at positions 0 to T/batch - 1; with `extension` (then batch = 1), at the
  /// positions that follow the caches. Returns [T, D].
  at::Tensor operator()(const at::Tensor& x_TD, int64_t batch, const RotaryTable& rotary,
                        const Extension* extension, const AttentionOptions& options = {}) const;

 private:
  ModelConfig model_;
  at::Tensor qkv_, out_, q_norm_, k_norm_;
};

/// Multi-head latent attention (DeepSeek-V2/V3): keys and values are projected from one normalized latent per
/// position, with a shared rotary key; queries use a low-rank projection unless q_lora_rank is 0.
class LatentAttention {
 public:
  LatentAttention(Parameters& parameters, const std::string& prefix, const ModelConfig& model);
  /// As GroupedQueryAttention. With caches, keys are not expanded: queries are projected into the latent
  /// space and all heads attend to the latents (weight absorption).
  at::Tensor operator()(const at::Tensor& x_TD, int64_t batch, const RotaryTable& rotary,
                        const Extension* extension, const AttentionOptions& options = {}) const;

 private:
  at::Tensor attend_latents(const at::Tensor& q, const at::Tensor& latent, const at::Tensor& shared_key,
                            const Extension& extension, double scale) const;

  ModelConfig model_;
  at::Tensor down_;  ///< [q_a_proj | kv_a_proj_with_mqa], or [q_proj | kv_a_proj_with_mqa] if q_lora_rank = 0
  at::Tensor q_norm_, q_up_, kv_norm_, kv_up_, out_;
};

}  // namespace hero
