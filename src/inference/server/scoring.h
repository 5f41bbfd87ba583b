#pragma once
// Probabilities of the tokens of whole prompts, from one pass over several of them.
#include <span>
#include <vector>

#include "inference/sampler.h"

namespace hero {

struct ScoredPrompt {
  std::vector<TokenLogprobs> tokens;  ///< of every token but the first
  at::Tensor next_V;                  ///< logits of the token that would follow, on the CPU
};

/// Scores prompts, none empty, with the `top[i]` likeliest ids beside every token of prompt i. Shorter
/// prompts are filled up to the longest, so neighbours in length belong together.
std::vector<ScoredPrompt> score_prompts(const Transformer& model,
                                        const std::vector<std::span<const int64_t>>& prompts,
                                        const std::vector<int64_t>& top);

}  // namespace hero
