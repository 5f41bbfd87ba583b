// Router stages, visible layers and model chunks.
#include <algorithm>
#include <set>

#include "config/config.h"
#include "io/error.h"

namespace hero {

std::vector<int64_t> moe_layer_numbers(const ModelConfig& model) {
  const std::set<int64_t> dense_layers(model.mlp_only_layers.begin(), model.mlp_only_layers.end());
  std::vector<int64_t> numbers;
  int64_t l = 0;
  for (int64_t i = 0; i < model.num_hidden_layers; ++i) {
    const bool dense = i < model.first_k_dense_replace || (i + 1) % model.decoder_sparse_step != 0 ||
                       dense_layers.contains(i);
    numbers.push_back(dense ? 0 : ++l);
  }
  return numbers;
}

int64_t moe_layers(const ModelConfig& model) {
  return std::ranges::count_if(moe_layer_numbers(model), [](int64_t l) { return l > 0; });
}

std::vector<int64_t> stage_of_layers(int64_t moe_layers, const RouterConfig& router) {
  const auto& sizes = router.stage_sizes;
  if (!sizes.empty()) {
    std::vector<int64_t> out;
    for (size_t stage = 0; stage < sizes.size(); ++stage) {
      out.insert(out.end(), static_cast<size_t>(std::max<int64_t>(sizes[stage], 0)),
                 static_cast<int64_t>(stage));
    }
    const bool whole = std::ranges::all_of(sizes, [](int64_t size) { return size > 0; });
    if (!whole || static_cast<int64_t>(out.size()) != moe_layers) {
      throw UserError("router.stage_sizes: found sizes with sum " + std::to_string(out.size()) +
                      ", expected positive sizes with sum " + std::to_string(moe_layers) +
                      ", the number of MoE layers");
    }
    return out;
  }
  const int64_t stages = router.stages;
  if (stages < 1 || stages > moe_layers) {
    throw UserError("router.stages: found " + std::to_string(stages) +
                    ", expected at least 1 and at most the " + std::to_string(moe_layers) + " MoE layers");
  }
  std::vector<int64_t> out;
  for (int64_t stage = 0; stage < stages; ++stage) {
    out.insert(out.end(), moe_layers / stages + (stage < moe_layers % stages ? 1 : 0), stage);
  }
  return out;
}

std::vector<int64_t> visible_layers(int64_t l, const std::vector<int64_t>& stage_of,
                                    const RouterConfig& router) {
  std::vector<int64_t> out;
  for (int64_t j = 1; j < l; ++j) {
    if (router.has_global_history() || stage_of.at(j - 1) == stage_of.at(l - 1)) out.push_back(j);
  }
  const int64_t hidden = static_cast<int64_t>(out.size()) - router.window;
  if (router.window > 0 && hidden > 0) out.erase(out.begin(), out.begin() + hidden);
  return out;
}

std::vector<int64_t> chunk_bounds(const Config& config, int64_t chunks) {
  const int64_t layers = config.model.num_hidden_layers;
  const auto& sizes = config.parallel.chunk_sizes;
  std::vector<int64_t> bounds = {0};
  if (!sizes.empty()) {
    for (const int64_t size : sizes) bounds.push_back(bounds.back() + size);
    if (static_cast<int64_t>(sizes.size()) != chunks || bounds.back() != layers) {
      throw UserError("parallel.chunk_sizes: found " + std::to_string(sizes.size()) + " sizes with sum " +
                      std::to_string(bounds.back()) + ", expected " + std::to_string(chunks) +
                      " sizes with sum model.num_hidden_layers = " + std::to_string(layers));
    }
    return bounds;
  }
  const auto numbers = moe_layer_numbers(config.model);
  const auto stage_of = stage_of_layers(moe_layers(config.model), config.router);
  if (chunks > 1 && stage_of.back() + 1 == chunks) {
    for (int64_t i = 0; i < layers; ++i) {
      if (numbers[i] > 1 && stage_of[numbers[i] - 1] != stage_of[numbers[i] - 2]) bounds.push_back(i);
    }
    bounds.push_back(layers);
    return bounds;
  }
  if (chunks > layers) {
    throw UserError("parallel.pipeline: found " + std::to_string(chunks) +
                    " model chunks, expected at most model.num_hidden_layers = " + std::to_string(layers));
  }
  for (int64_t chunk = 0; chunk < chunks; ++chunk)
    bounds.push_back(bounds.back() + layers / chunks + (chunk < layers % chunks ? 1 : 0));
  return bounds;
}

}  // namespace hero
