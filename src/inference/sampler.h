#pragma once
// Autoregressive generation with KV caches (latent caches for MLA) and continuous batching.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "model/transformer.h"

namespace hero {

struct SamplingParams {
  int64_t max_tokens = 128;
  double temperature = 1.0;  ///< 0: greedy decoding
  int64_t top_k = 0;         ///< 0: disabled
  double top_p = 1.0;        ///< smallest set of tokens whose probabilities add up to it
  uint64_t seed = 1234;
  std::vector<int64_t> eos;  ///< ids that end the sequence
  bool cache = true;         ///< false: recompute every position in each step
  int64_t logprobs = -1;     ///< top-N log-probabilities per token; -1: none at all
};

/// Natural log-probabilities over the whole vocabulary at temperature 1.
struct TokenLogprobs {
  double chosen;
  std::vector<std::pair<int64_t, double>> top;  ///< the most likely ids, descending
};

/// From logits [V]. `chosen`: of `id`; equal to the first of `top` if `id` is the most likely.
TokenLogprobs token_logprobs(const at::Tensor& logits_V, int64_t id, int64_t top);

/// Samples a token from logits [V]: temperature, then top-k, then top-p; ties go to the lower id. `index`:
/// position among the generated tokens, which selects the random number.
int64_t sample_token(const at::Tensor& logits_V, const SamplingParams& sampling, uint64_t index);

/// Active sequences, decoded as one batch. Sequences may be added at any time. The model must outlive it.
class Generator {
 public:
  explicit Generator(const Transformer& model) : model_(model) {}

  /// Adds a sequence with a non-empty `prompt`. Returns its id; ids count from 0. `cache`: if given, that of
  /// the first tokens of the prompt, fewer than all, which are not computed again; requires sampling.cache.
  /// It then has all tokens of the sequence but the last one, also after the sequence has ended.
  size_t add(std::vector<int64_t> prompt, const SamplingParams& sampling,
             std::shared_ptr<KeyValueCache> cache = {});

  struct GeneratedToken {
    size_t sequence;
    std::optional<int64_t> id;              ///< empty: the sequence has finished
    std::optional<int64_t> sampled;         ///< the id, or the eos that ended the sequence
    std::optional<TokenLogprobs> logprobs;  ///< of `sampled`, if the sampling parameters request them
  };
  /// Generates the next token of every active sequence. A sequence ends at an eos (not returned), after
  /// max_tokens tokens or at the model's last position. Prefills new prompts in passes of a few thousand
  /// positions (a prompt shared by several sequences only once), then runs one decode step for the others.
  std::vector<GeneratedToken> step();

  /// Aborts a sequence and frees its KV cache. No effect if it has finished.
  void remove(size_t sequence);

 private:
  struct Sequence {
    size_t id;
    SamplingParams sampling;
    std::vector<int64_t> pending;  // tokens not yet in the cache; without a cache: all tokens
    std::shared_ptr<KeyValueCache> cache;
    int64_t num_generated = 0, max_new_tokens = 0;
  };
  at::Tensor forward(const std::vector<Sequence*>& batch);
  std::vector<Sequence*> with_same_prompt(const Sequence& first) const;
  void prefill(std::vector<Sequence*> waiting, std::vector<GeneratedToken>& generated);
  static GeneratedToken append_token(Sequence& sequence, const at::Tensor& logits_V);

  const Transformer& model_;
  std::vector<std::unique_ptr<Sequence>> sequences_;  // active
  Transformer::ExtensionBuffers buffers_;
  size_t next_id_ = 0;
};

/// Generates a continuation of a non-empty `prompt` and calls `on_token` for each new id. Returns the new ids
/// without the eos.
std::vector<int64_t> generate(const Transformer& model, const std::vector<int64_t>& prompt,
                              const SamplingParams& sampling, const std::function<void(int64_t)>& on_token);

}  // namespace hero
