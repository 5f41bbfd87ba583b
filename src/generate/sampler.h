#pragma once
// Text from a model: one position at a time over a key/value cache (the latent one for MLA).
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "model/transformer.h"

namespace hero {

struct Sampling {
  int64_t max_tokens = 128;
  double temperature = 1.0;  ///< 0: the likeliest token
  int64_t top_k = 0;         ///< 0: all
  double top_p = 1.0;        ///< smallest set of tokens whose probabilities reach it
  uint64_t seed = 1234;
  int64_t eos = -1;   ///< ends the text
  bool cache = true;  ///< false: recompute every position each time
};

/// One token from logits [V]: temperature, then top-k, then top-p; ties by the lower id. `index` numbers the
/// draw.
int64_t choose_token(const at::Tensor& logits_V, const Sampling& sampling, uint64_t index);

/// One text in the making. The model must outlive it.
class Generation {
 public:
  /// Continues `prompt`, which is not empty.
  Generation(const Transformer& model, std::vector<int64_t> prompt, const Sampling& sampling);

  /// The next id; nothing after the eos (itself not returned), max_tokens ids or the model's last position.
  std::optional<int64_t> next();

 private:
  const Transformer& model_;
  Sampling sampling_;
  std::vector<int64_t> unread_;  // ids the cache lacks: all of them without a cache
  KeyValueCache cache_;
  int64_t made_ = 0, room_ = 0;
};

/// Continues `prompt` (not empty); `on_token` sees each id as it is made. Returns the new ids, eos not among
/// them.
std::vector<int64_t> generate(const Transformer& model, const std::vector<int64_t>& prompt,
                              const Sampling& sampling, const std::function<void(int64_t)>& on_token);

}  // namespace hero
