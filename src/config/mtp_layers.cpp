#include "config/mtp_layers.h"

namespace hero {

std::vector<int64_t> moe_layer_numbers_with_modules(const ModelConfig& model) {
  auto numbers = moe_layer_numbers(model);
  const int64_t layers = moe_layers(model);
  for (int64_t k = 1; k <= model.num_nextn_predict_layers; ++k) numbers.push_back(layers + k);
  return numbers;
}

std::vector<int64_t> stage_of_layers_with_modules(const ModelConfig& model, const RouterConfig& router) {
  auto stage_of = stage_of_layers(moe_layers(model), router);
  stage_of.resize(stage_of.size() + static_cast<size_t>(model.num_nextn_predict_layers), stage_of.back());
  return stage_of;
}

Config main_model(Config config) {
  config.model.num_nextn_predict_layers = 0;
  return config;
}

}  // namespace hero
