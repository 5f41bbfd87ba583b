#pragma once
// Building blocks of the decoder layers: rotary tables, key-value cache, SwiGLU feed-forward.
#include <algorithm>

#include "config/config.h"
#include "model/parameters.h"

namespace hero {

/// Angle per position of each pair of rotary dimensions [R/2]: theta^(-2i/R), scaled if model.rope_scaling
/// is YaRN. fp32 as in the reference implementations, fp64 in fp64 runs. Computed on the CPU, so that all
/// devices use the same angles.
at::Tensor rotary_frequencies(const ModelConfig& model, at::ScalarType dtype);

/// cos and sin [S, R/2] of the given positions [S], int64, scaled if model.rope_scaling is YaRN, with the
/// dtype and device of `frequencies`. Positions that differ between the sequences of a batch are [B*S].
struct RotaryTable {
  at::Tensor cos, sin;
};
RotaryTable rotary_table(const at::Tensor& positions, const at::Tensor& frequencies,
                         const ModelConfig& model);

/// The rows of a rotary table of all positions from 0, which is kept between calls and grows by doubling.
class RotaryCache {
 public:
  /// cos and sin [T, R/2] of `positions`, as of rotary_table.
  RotaryTable rows(const std::vector<int64_t>& positions, const at::Tensor& frequencies,
                   const ModelConfig& model);

 private:
  RotaryTable table_;
};

/// YaRN's factor of latent attention's logits (DeepSeek-V3): (0.1 mscale_all_dim ln(factor) + 1)^2; 1 without
/// YaRN.
double yarn_logit_scale(const RopeScaling& scaling);

/// Cached rows of earlier positions, [S, heads, width], in a buffer that grows by doubling. Copies are deep.
class CacheBuffer {
 public:
  CacheBuffer() = default;
  CacheBuffer(const CacheBuffer& other);
  CacheBuffer(CacheBuffer&&) = default;
  CacheBuffer& operator=(CacheBuffer other) noexcept;
  ~CacheBuffer() = default;

  /// Appends rows [first, first + count) of [T, heads, width].
  void append(const at::Tensor& rows, int64_t first, int64_t count);
  /// Keeps at most the first `count` rows.
  void truncate(int64_t count) { length_ = std::min(length_, count); }
  /// [>= length, heads, width]; the appended rows come first, the rest is uninitialized.
  const at::Tensor& tensor() const { return tensor_; }

 private:
  at::Tensor tensor_;
  int64_t length_ = 0;
};

/// Cache of one attention layer for one sequence: keys and values of every key head (GQA), or, in `keys`
/// alone, the normalized latent concatenated with the rotated shared key (MLA).
struct LayerCache {
  CacheBuffer keys, values;
};

/// Key-value cache of one sequence, for all layers.
struct KeyValueCache {
  std::vector<LayerCache> layers;
  int64_t length = 0;  ///< cached positions

  /// Keeps at most the first `count` positions.
  void truncate(int64_t count);
};

/// New positions of several sequences and one layer's caches: counts[i] rows of sequence i, sequences
/// concatenated.
struct Extension {
  std::vector<LayerCache*> caches;
  std::vector<int64_t> counts;
  std::vector<int64_t> lengths;  ///< positions of each sequence, including the new ones
  bool prefill = false;          ///< all caches were empty

  /// Appends each sequence's part of `rows` [T, heads, width] to the given buffer of its cache and returns
  /// the buffers' tensors.
  std::vector<at::Tensor> append(const at::Tensor& rows, CacheBuffer LayerCache::* buffer) const;
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
