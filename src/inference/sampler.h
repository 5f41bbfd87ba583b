#pragma once
// Texts from a model: one position at a time over key/value caches (the latent ones for MLA), several texts
// together.
#include <cstdint>
#include <functional>
#include <memory>
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
  std::vector<int64_t> eos;  ///< ids that end the text
  bool cache = true;         ///< false: recompute every position each time
  int64_t logprobs = -1;     ///< how many of the likeliest ids come with each token; -1: no probabilities
};

/// Natural logarithms of probabilities at temperature 1, out of all ids.
struct TokenLogprobs {
  double chosen;
  std::vector<std::pair<int64_t, double>> top;  ///< the likeliest ids, descending
};

/// Of `id` from logits [V]. Where `id` is the likeliest, `chosen` is equal to the first of `top`.
TokenLogprobs token_logprobs(const at::Tensor& logits_V, int64_t id, int64_t top);

/// One token from logits [V]: temperature, then top-k, then top-p; ties by the lower id. `index` numbers the
/// draw.
int64_t choose_token(const at::Tensor& logits_V, const Sampling& sampling, uint64_t index);

/// Texts in the making. Texts may join at any time; the model must outlive them.
class Generator {
 public:
  explicit Generator(const Transformer& model) : model_(model) {}

  /// Begins to continue `prompt`, which is not empty. Returns the text's number; they count from 0.
  size_t add(std::vector<int64_t> prompt, const Sampling& sampling);

  struct Made {
    size_t text;
    std::optional<int64_t> id;              ///< nothing: the text has ended
    std::optional<int64_t> drawn;           ///< the id, or the eos that ended the text
    std::optional<TokenLogprobs> logprobs;  ///< of `drawn`, where the text's sampling asks for them
  };
  /// The next id of every text that has not ended: an eos (itself not returned), max_tokens ids or the
  /// model's last position end it. New prompts are read some thousand positions at a time, one of several
  /// texts once, then all texts go on together.
  std::vector<Made> step();

  /// Ends a text before its time, and frees what was kept for it. Nothing happens where it has ended.
  void remove(size_t text);

 private:
  struct Text {
    size_t number;
    Sampling sampling;
    std::vector<int64_t> unread;  // ids the cache lacks: all of them without a cache
    KeyValueCache cache;
    int64_t made = 0, room = 0;
  };
  at::Tensor read(const std::vector<Text*>& texts) const;
  std::vector<Text*> same_prompt(const Text& first) const;
  void read_begun(std::vector<Text*> begun, std::vector<Made>& made) const;
  static Made take(Text& text, const at::Tensor& logits_V);

  const Transformer& model_;
  std::vector<std::unique_ptr<Text>> texts_;  // that have not ended
  size_t count_ = 0;
};

/// Continues `prompt` (not empty); `on_token` sees each id as it is made. Returns the new ids, eos not among
/// them.
std::vector<int64_t> generate(const Transformer& model, const std::vector<int64_t>& prompt,
                              const Sampling& sampling, const std::function<void(int64_t)>& on_token);

}  // namespace hero
