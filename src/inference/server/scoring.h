#pragma once
// Log-probabilities of prompt tokens, from one forward pass over a batch of prompts.
#include <span>
#include <vector>

#include "inference/sampler.h"

namespace hero {

struct ScoredPrompt {
  std::vector<TokenLogprobs> tokens;  ///< for every token except the first
  at::Tensor next_V;                  ///< logits of the next token, on the CPU
};

/// Scores non-empty prompts, with the `top[i]` most likely ids for every token of prompt i. Pads to the
/// longest prompt, so batch prompts of similar length.
std::vector<ScoredPrompt> score_prompts(const Transformer& model,
                                        const std::vector<std::span<const int64_t>>& prompts,
                                        const std::vector<int64_t>& top);

}  // namespace hero
