#pragma once
// OUT/analysis.json and OUT/analysis.safetensors, as docs/analysis.md describes them.
#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "analysis/passes.h"
#include "tokenizer/tokenizer.h"

namespace hero {

/// `model`: the analyzed model. `folder`: the folder with config.json, from resolve_model_dir.
nlohmann::ordered_json model_json(const std::filesystem::path& folder, const Config& config);

/// `layer_dependency`, `tau` and `coupling_by_distance`, raw and centered, `expert_bias` and `pairs`.
nlohmann::ordered_json coupling_json(const Coupling& coupling);

/// `expert_share`, `utilisation` without baseline, `history`, `agreement`, `history_alone`, `removal` and
/// `paths` without its text.
nlohmann::ordered_json effects_json(const HistoryEffects& effects, const Config& config,
                                    const HistoryLayout& layout, const Coupling& coupling);

/// Adds `baseline` and `peak_change_percent` to `utilisation`.
void add_baseline(nlohmann::ordered_json& utilization, const std::filesystem::path& folder,
                  const Config& config, const Utilization& baseline);

/// The text of each token; its vocabulary piece if it decodes to nothing.
nlohmann::ordered_json token_texts(const Tokenizer& tokenizer, const std::vector<int64_t>& ids);

/// Name of a model folder; for a checkpoint of a run, the name of the run.
std::string model_name(const std::filesystem::path& folder);

/// Values with at least one dimension as nested lists.
nlohmann::ordered_json rows_json(const at::Tensor& values);

/// Writes both files atomically into `out`, creating the folder if needed. RunError on failure.
void write_results(const std::filesystem::path& out, const nlohmann::ordered_json& results,
                   const RouterHistory& history);

}  // namespace hero
