#pragma once
// What the two attention forms and the feed-forward layers share: rotary tables, cached keys and values.
#include "config/config.h"
#include "model/parameters.h"

namespace hero {

/// Angle per position of each pair of rotary dimensions [R/2]: theta^(-2i/R), slowed down where
/// model.rope_scaling asks for YaRN. fp32, as in the reference implementations, fp64 in fp64 runs. On the
/// CPU, so that every device turns by the same angles.
at::Tensor rotary_frequencies(const ModelConfig& model, at::ScalarType dtype);

/// cos and sin [S, R/2] of the given positions [S], int64, scaled where model.rope_scaling asks for YaRN, in
/// the type and on the device of `frequencies`.
struct RotaryTable {
  at::Tensor cos, sin;
};
RotaryTable rotary_table(const at::Tensor& positions, const at::Tensor& frequencies,
                         const ModelConfig& model);

/// What YaRN multiplies latent attention's logits by (DeepSeek-V3): (0.1 mscale_all_dim ln(factor) + 1)^2; 1
/// without YaRN.
double yarn_logit_scale(const RopeScaling& scaling);

/// Rows of earlier positions, [S, heads, width], in memory that grows by doubling. A copy has memory of its
/// own.
class CachedRows {
 public:
  CachedRows() = default;
  CachedRows(const CachedRows& other);
  CachedRows(CachedRows&&) = default;
  CachedRows& operator=(CachedRows other) noexcept;
  ~CachedRows() = default;

  /// Appends `count` of the rows [T, heads, width] from `first` on.
  void append(const at::Tensor& rows, int64_t first, int64_t count);
  /// [>= length, heads, width], what was appended first.
  const at::Tensor& memory() const { return memory_; }

 private:
  at::Tensor memory_;
  int64_t length_ = 0;
};

/// What one attention layer keeps of a sequence's earlier positions: keys and values of every key head (GQA),
/// or in `keys` alone the normalised latent and the rotated shared key side by side (MLA).
struct LayerCache {
  CachedRows keys, values;
};

/// What a model keeps of one sequence while text is generated.
struct KeyValueCache {
  std::vector<LayerCache> layers;
  int64_t length = 0;  ///< positions held
};

/// New positions of several sequences, as one layer sees them: counts[i] rows of sequence i, one sequence
/// after the other.
struct Extension {
  std::vector<LayerCache*> caches;
  std::vector<int64_t> counts;
  std::vector<int64_t> lengths;  ///< positions of each, the new ones among them
  bool fresh = false;            ///< all from their first positions

  /// Appends every sequence's part of `rows` [T, heads, width] to that part of its cache, and returns the
  /// caches' memory.
  std::vector<at::Tensor> append(const at::Tensor& rows, CachedRows LayerCache::* part) const;
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
