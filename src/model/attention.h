#pragma once
// Self-attention of both model families.
#include "config/config.h"
#include "model/layers.h"

namespace hero {

/// Grouped-query attention with RMSNorm on every query and key head (Qwen3).
class GroupedQueryAttention {
 public:
  GroupedQueryAttention(Parameters& parameters, const std::string& prefix, const ModelConfig& model);
  /// x [B, S, D]: S positions from 0; with `extension` [1, T, D], positions that follow those of the caches.
  at::Tensor operator()(const at::Tensor& x, const RotaryTable& rotary, const Extension* extension) const;

 private:
  ModelConfig model_;
  at::Tensor qkv_, out_, q_norm_, k_norm_;
};

/// Multi-head latent attention (DeepSeek-V2/V3): keys and values come from one normalised latent per
/// position, a shared rotary key beside it; queries through a low rank, or straight where q_lora_rank is 0.
class LatentAttention {
 public:
  LatentAttention(Parameters& parameters, const std::string& prefix, const ModelConfig& model);
  /// As GroupedQueryAttention. Over caches no key is ever expanded: queries move into the latent's space, and
  /// all heads attend to the latents themselves.
  at::Tensor operator()(const at::Tensor& x, const RotaryTable& rotary, const Extension* extension) const;

 private:
  at::Tensor attend_latents(const at::Tensor& q, const at::Tensor& latent, const at::Tensor& shared_key,
                            const Extension& extension, double scale) const;

  ModelConfig model_;
  at::Tensor
      down_;  ///< [q_a_proj | kv_a_proj_with_mqa], or [q_proj | kv_a_proj_with_mqa] without a query rank
  at::Tensor q_norm_, q_up_, kv_norm_, kv_up_, out_;
};

}  // namespace hero
