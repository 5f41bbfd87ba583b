#pragma once
#include "cli/command.h"
#include "inference/sampler.h"

namespace hero {

/// Adds --max-tokens, --temperature, --top-k, --top-p and --seed.
inline void add_sampling_options(Command& command, SamplingParams& sampling) {
  command.add_option("--max-tokens", sampling.max_tokens, "maximum new tokens")
      .range(1, 1 << 20)
      .show_default();
  command.add_option("--temperature", sampling.temperature, "sampling temperature; 0: greedy")
      .range(0.0, 100.0)
      .show_default();
  command.add_option("--top-k", sampling.top_k, "sample from the k most likely tokens; 0: all")
      .non_negative()
      .show_default();
  command.add_option("--top-p", sampling.top_p, "sample from the most likely tokens with total probability p")
      .range(0.0, 1.0)
      .show_default();
  command.add_option("--seed", sampling.seed, "sampling seed").non_negative().show_default();
}

}  // namespace hero
