#pragma once
// config.json as Hugging Face has it, both ways.
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "config/config.h"

namespace hero {

/// The model's config.json: DeepseekV3ForCausalLM or Qwen3MoeForCausalLM with their own keys. A HERO model
/// adds `hero_router` (window, scale, eps, detach, history, stage of every MoE layer); it and a DeepSeek
/// model with softmax scores name the modelling code of `modelling_code` in `auto_map`. `eos`: -1 for none.
/// `dtype`: of the stored weights, "float32" or "bfloat16".
std::string model_config_json(const Config& config, int64_t eos, const std::string& dtype = "float32");

/// Python files, by name, that a folder of this model carries for transformers; none for what transformers
/// knows by itself.
std::map<std::string, std::string> modelling_code(const Config& config);

/// What the text of a folder's config.json says: the `model` section, the `router` section where it has
/// `hero_router`, the balance loss where the model asks for one, train.dtype and train.sequence as far as the
/// model allows.
/// UserError naming `file` and the key: for keys that are missing, of a wrong type, contradictory or
/// unknown, and for features that this program lacks (biases, sliding windows, other activations, other
/// rotary scalings, quantized weights ...).
Config parse_model_config(std::string_view text, const std::string& file);

/// parse_model_config of a file.
Config read_model_config(const std::filesystem::path& config_json);

}  // namespace hero
