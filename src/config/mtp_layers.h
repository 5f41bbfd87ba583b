#pragma once
// Numbers of the layers of multi-token prediction modules. Module k, from 1, is decoder layer
// num_hidden_layers + k - 1, counted from 0, and MoE layer moe_layers(model) + k, in the last router stage.
#include <vector>

#include "config/config.h"

namespace hero {

/// Decoder layers of the main model and the modules.
inline int64_t decoder_layers_with_modules(const ModelConfig& model) {
  return model.num_hidden_layers + model.num_nextn_predict_layers;
}

/// moe_layer_numbers(model), followed by those of the modules.
std::vector<int64_t> moe_layer_numbers_with_modules(const ModelConfig& model);

/// Stages of the main model's MoE layers (stage_of_layers), followed by those of the modules.
std::vector<int64_t> stage_of_layers_with_modules(const ModelConfig& model, const RouterConfig& router);

/// The configuration of the model without its modules.
Config main_model(Config config);

}  // namespace hero
