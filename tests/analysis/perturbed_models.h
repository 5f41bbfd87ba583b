#pragma once
// Small models with perturbed weights, as folders and in memory.
#include <filesystem>

#include "analysis/token_windows.h"
#include "config/config.h"
#include "hf/load.h"
#include "hf/model_config.h"
#include "hf/safetensors.h"
#include "hf/temporary_folder.h"
#include "oracle/oracle.h"
#include "oracle/small_models.h"

namespace analyze {

struct Variant {
  const char* name;
  int64_t stages, window;
  hero::HistoryScope scope;
  bool scale;
};

inline const Variant kVariants[] = {{"one stage", 1, 0, hero::HistoryScope::kStage, true},
                                    {"two stages", 2, 0, hero::HistoryScope::kStage, true},
                                    {"window of 2", 1, 2, hero::HistoryScope::kStage, true},
                                    {"window of 1, two stages", 2, 1, hero::HistoryScope::kStage, true},
                                    {"global", 2, 0, hero::HistoryScope::kGlobal, true},
                                    {"no scale, two stages", 2, 0, hero::HistoryScope::kStage, false}};

inline hero::Config config_of(const Variant& v, hero::Config config = small::qwen()) {
  config.model.num_hidden_layers = 5;
  config.router.stages = v.stages;
  config.router.window = v.window;
  config.router.history = v.scope;
  config.router.scale = v.scale;
  return config;
}

inline void save(const hero::Transformer& model, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::vector<hero::TensorView> views;
  for (const auto& [name, tensor] : model.parameters().state_dict())
    views.push_back(hero::tensor_view(name, tensor));
  hero::write_safetensors(folder / "model.safetensors", views, {{"format", "pt"}});
  hero::test::write_bytes(folder / "config.toml", hero::dump(model.config()));
  hero::test::write_bytes(folder / "config.json", hero::model_config_json(model.config(), -1));
}

/// Index of the decoder layer with MoE layer l, from 0.
inline int64_t decoder_layer(const hero::Config& config, int64_t l) {
  const auto numbers = hero::moe_layer_numbers(config.model);
  for (size_t i = 0; i < numbers.size(); ++i)
    if (numbers[i] == l) return static_cast<int64_t>(i);
  return -1;
}

inline std::string router_name(const hero::Config& config, int64_t l) {
  return "model.layers." + std::to_string(decoder_layer(config, l)) + ".mlp.gate.weight";
}

/// Windows of given tokens [W, S + 1] and, if defined, document starts; the last one has two positions
/// without a target.
inline hero::TokenWindows token_windows(const at::Tensor& tokens_WS, const at::Tensor& starts_WS = {}) {
  const int64_t windows = tokens_WS.size(0), sequence = tokens_WS.size(1) - 1;
  const auto copy = [=](const at::Tensor& values, int64_t window, int64_t* out) {
    const auto row = values[window].contiguous();
    std::copy_n(row.const_data_ptr<int64_t>(), sequence + 1, out);
  };
  const auto starts = starts_WS.defined() ? starts_WS : at::zeros_like(tokens_WS);
  hero::TokenDataset dataset{.name = "made",
                             .windows = windows,
                             .read =
                                 [=](int64_t window, int64_t* out) {
                                   copy(tokens_WS, window, out);
                                   return window + 1 == windows ? sequence - 2 : sequence;
                                 },
                             .read_starts = [=](int64_t window, int64_t* out) { copy(starts, window, out); }};
  return hero::TokenWindows({dataset}, sequence, windows * sequence);
}

}  // namespace analyze
