#pragma once
// Reads and writes Hugging Face's config.json.
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace hero {

/// The model's config.json, with the keys of its class in transformers. A HERO model adds
/// `hero_router` (window, scale, eps, detach, history, stage of every MoE layer). HERO models and DeepSeek
/// models with softmax scores reference the files of `modeling_code` in `auto_map`. `dtype`: of the stored
/// weights, "float32" or "bfloat16".
std::string model_config_json(const Config& config, const std::vector<int64_t>& eos,
                              const std::string& dtype = "float32");
/// With at most one EOS token; -1: none.
std::string model_config_json(const Config& config, int64_t eos, const std::string& dtype = "float32");

/// generation_config.json with these EOS tokens.
std::string generation_config_json(const std::vector<int64_t>& eos);

/// The Python files (name -> contents) that transformers needs to load this model; empty for architectures
/// that transformers implements itself.
std::map<std::string, std::string> modeling_code(const Config& config);

/// Parses config.json: the `model` section, the `router` section from `hero_router`, the balance loss if the
/// model enables one, train.dtype, and train.sequence, limited to the model's positions.
/// UserError naming `file` and the key for missing, mistyped, contradictory and unknown keys, and for
/// unsupported features (biases, sliding windows, other activations, other RoPE scalings, quantization, ...).
Config parse_model_config(std::string_view text, const std::string& file);

/// Reads a file and parses it with parse_model_config.
Config read_model_config(const std::filesystem::path& config_json);

}  // namespace hero
