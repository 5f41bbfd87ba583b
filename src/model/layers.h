#pragma once
// What the two attention forms and the feed-forward layers share: rotary tables, cached keys and values.
#include "config/config.h"
#include "model/parameters.h"

namespace hero {

/// Angle per position of each pair of rotary dimensions [R/2]: theta^(-2i/R), slowed down where
/// model.rope_scaling asks for YaRN. fp32, as in the reference implementations, fp64 in fp64 runs. On the
/// CPU, so that every device turns by the same angles.
at::Tensor rotary_frequencies(const ModelConfig& model, at::ScalarType dtype);

/// cos and sin [S, R/2] of positions first..first+count-1, scaled where model.rope_scaling asks for YaRN, in
/// the type and on the device of `frequencies`.
struct RotaryTable {
  at::Tensor cos, sin;
};
RotaryTable rotary_table(int64_t first, int64_t count, const at::Tensor& frequencies,
                         const ModelConfig& model);

/// What YaRN multiplies latent attention's logits by (DeepSeek-V3): (0.1 mscale_all_dim ln(factor) + 1)^2; 1
/// without YaRN.
double yarn_logit_scale(const RopeScaling& scaling);

/// What one attention layer keeps of earlier positions while text is generated: keys and values [B, Hkv, S,
/// .] (GQA) or the normalised latent [B, S, kv_lora_rank] and the rotated shared key [B, S, R] (MLA).
struct LayerCache {
  at::Tensor first, second;

  /// Appends along `dim` and returns everything so far.
  void append(const at::Tensor& a, const at::Tensor& b, int64_t dim);
};

struct KeyValueCache {
  std::vector<LayerCache> layers;
  int64_t length = 0;  ///< positions held
};

/// SwiGLU feed-forward layer: gate_proj, up_proj, down_proj.
class FeedForward {
 public:
  FeedForward(Parameters& parameters, const std::string& prefix, int64_t hidden, int64_t intermediate,
              double std);
  at::Tensor operator()(const at::Tensor& x_TD) const;

 private:
  at::Tensor gate_up_, down_;
};

}  // namespace hero
