#pragma once
// OUT/analysis.json and OUT/analysis.safetensors, as docs/analysis.md describes them.
#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "analysis/passes.h"

namespace hero {

/// `model`: what was analysed. `folder`: the folder with config.json, as resolve_model_dir found it.
nlohmann::ordered_json model_json(const std::filesystem::path& folder, const Config& config);

/// `layer_dependency`, `tau` and `coupling_by_distance`, raw and centered, `expert_bias` and `pairs`.
nlohmann::ordered_json coupling_json(const Coupling& coupling);

/// `expert_share`, `utilisation` without a baseline, `history`, `agreement`, `history_alone`, `removal` and
/// `paths` but for its text.
nlohmann::ordered_json effects_json(const HistoryEffects& effects, const Config& config,
                                    const HistoryLayout& layout, const Coupling& coupling);

/// Adds the other model to `utilisation`: `baseline` and `peak_change_percent`.
void add_baseline(nlohmann::ordered_json& utilisation, const std::filesystem::path& folder,
                  const Config& config, const Utilisation& baseline);

/// Every token by itself; what the tokenizer has no text for, by its piece.
nlohmann::ordered_json token_texts(const Tokenizer& tokenizer, const std::vector<int64_t>& ids);

/// A name for a model folder: that of its run where it is a run's checkpoint.
std::string model_name(const std::filesystem::path& folder);

/// Values of any shape but [] as nested lists.
nlohmann::ordered_json rows_json(const at::Tensor& values);

/// Writes both files, each under a temporary name first, into `out`, which is made where it is missing.
/// RunError when that fails.
void write_numbers(const std::filesystem::path& out, const nlohmann::ordered_json& numbers,
                   const RouterHistory& history);

}  // namespace hero
