#pragma once
// The routers of a stack of MoE layers with given inputs, without the rest of the model.
#include "model/router.h"
#include "oracle/small_models.h"

namespace small {

struct RouterStack {
  RouterStack(const hero::Config& c, int64_t layers, uint64_t seed)
      : config(c), layout(layers, c.model.num_experts, c.router), parameters(hero::train_dtype(c), seed) {
    for (int64_t l = 1; l <= layers; ++l) {
      routers.emplace_back(parameters, "model.layers." + std::to_string(l - 1) + ".mlp", l, config, layout);
    }
  }
  RouterStack(const RouterStack&) = delete;

  hero::RoutingHistory history(int64_t tokens) const {
    return {layout, tokens, hero::router_dtype(config), !config.router.detach};
  }

  /// Outputs of all layers for inputs [T, D], one per layer.
  std::vector<hero::ops::RouteOutput> operator()(const std::vector<at::Tensor>& inputs,
                                                 hero::RoutingHistory& history) const {
    std::vector<hero::ops::RouteOutput> outputs;
    for (size_t i = 0; i < routers.size(); ++i) outputs.push_back(routers[i](inputs[i], history));
    return outputs;
  }
  std::vector<hero::ops::RouteOutput> operator()(const std::vector<at::Tensor>& inputs) const {
    auto new_history = history(inputs[0].size(0));
    return (*this)(inputs, new_history);
  }

  at::Tensor weight(int64_t l) const { return routers[l - 1].weight(); }

  hero::Config config;
  hero::HistoryLayout layout;
  hero::Parameters parameters;
  std::vector<hero::Router> routers;
};

inline std::vector<at::Tensor> inputs(int64_t layers, int64_t tokens, int64_t width, uint64_t seed) {
  std::vector<at::Tensor> list;
  for (int64_t l = 0; l < layers; ++l) list.push_back(normal({tokens, width}, seed + l));
  return list;
}

}  // namespace small
