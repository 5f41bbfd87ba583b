#pragma once
// config.json as Hugging Face reads it.
#include <cstdint>
#include <string>

#include "config/config.h"

namespace hero {

/// The model's config.json: DeepseekV3ForCausalLM or Qwen3MoeForCausalLM with their own keys; a HERO model
/// adds `hero_router` (window, scale, eps, detach, history, stage of every MoE layer). `eos`: -1 for none.
std::string model_config_json(const Config& config, int64_t eos);

}  // namespace hero
