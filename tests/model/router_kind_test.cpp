// Every kind of router: its declared weights, costs, history and keys of config.json agree with the model.
#include "model/router_kind.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "config/fields.h"
#include "config/json_section.h"
#include "config/router_kinds.h"
#include "model/counts.h"
#include "oracle/small_models.h"

namespace router_kind_test {

using Shape = std::vector<int64_t>;

// Both families, for every kind, with default and other values of the options that kinds read.
std::vector<hero::Config> configs() {
  std::vector<hero::Config> list;
  for (const auto& kind : hero::router_kinds()) {
    for (auto config : {small::qwen(), small::deepseek()}) {
      config.router.kind = kind.name;
      list.push_back(config);
      config.router.window = 1;
      config.router.stages = 2;
      config.router.stage_sizes = {1, 3};
      config.router.scale = false;
      config.router.state_size = 5;
      config.router.eps = 0.25;
      config.router.detach = false;
      list.push_back(config);
      config.router.history = hero::HistoryScope::kGlobal;
      list.push_back(config);
    }
  }
  return list;
}

std::string describe(const hero::Config& config) { return hero::dump(config); }

// Names in checkpoints and shapes of all weights that the kind declares.
std::map<std::string, Shape> declared_weights(const hero::Config& config) {
  std::map<std::string, Shape> weights;
  const auto numbers = hero::moe_layer_numbers(config.model), seen = hero::visible_counts(config);
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] == 0) continue;
    for (const auto& weight : hero::router_kind(config.router).weights(config, numbers[i], seen[i]))
      weights["model.layers." + std::to_string(i) + ".mlp." + weight.name] = weight.shape;
  }
  return weights;
}

TEST(RouterKind, TablesHaveTheSameKinds) {
  const auto& kinds = hero::all_router_kinds();
  ASSERT_EQ(kinds.size(), hero::router_kinds().size());
  for (size_t i = 0; i < kinds.size(); ++i) {
    hero::RouterConfig router;
    router.kind = hero::router_kinds()[i].name;
    EXPECT_EQ(kinds[i]->name(), router.kind);
    EXPECT_EQ(&hero::router_kind(router), kinds[i]);
  }
}

TEST(RouterKind, DeclaredWeightsAreTheModelsParameters) {
  for (const auto& config : configs()) {
    const hero::Transformer model(config);
    std::map<std::string, Shape> found;
    for (const auto& parameter : model.parameters().all()) {
      if (hero::is_router_weight(config, parameter.name))
        found[parameter.name] = parameter.values.sizes().vec();
    }
    EXPECT_EQ(found, declared_weights(config)) << describe(config);
    for (const auto& layer : model.layers()) {
      if (!layer.moe()) continue;
      const auto& router = layer.moe()->router();
      const auto seen = static_cast<int64_t>(model.layout().visible(router.layer()).size());
      const auto declared = hero::router_kind(config.router).weights(config, router.layer(), seen);
      ASSERT_GE(router.weights().size(), declared.size());
      for (size_t w = 0; w < declared.size(); ++w)
        EXPECT_EQ(router.weights()[w].sizes().vec(), declared[w].shape) << declared[w].name;
    }
  }
}

TEST(RouterKind, CountsAreTheSizesOfTheWeights) {
  for (const auto& config : configs()) {
    double elements = 0, counted = 0;
    for (const auto& [name, shape] : declared_weights(config)) {
      double size = 1;
      for (const int64_t n : shape) size *= static_cast<double>(n);
      elements += size;
    }
    for (const auto& item : hero::model_costs(config)) {
      if (item.name == hero::kRouterCost || item.name == hero::kHistoryCost) counted += item.parameters;
    }
    EXPECT_EQ(counted, elements) << describe(config);
  }
}

TEST(RouterKind, SlotsExistIfLayersReadThem) {
  for (const auto& config : configs()) {
    const auto& kind = hero::router_kind(config.router);
    const auto layers = hero::moe_layers(config.model);
    const hero::HistoryLayout layout(layers, config.model.num_experts, config.router);
    const hero::RoutingHistory history(layout, 3, at::kDouble, /*differentiable=*/false);
    EXPECT_EQ(layout.width(), kind.history_width(config.model.num_experts, config.router));
    bool any_slot = false;
    for (int64_t l = 1; l <= layers; ++l) {
      EXPECT_EQ(layout.visible(l), kind.visible(l, layout.stage_of(), config.router));
      any_slot = any_slot || history.slot(l).probs.defined();
      for (const int64_t j : layout.visible(l)) {
        EXPECT_LT(j, l);
        EXPECT_EQ(history.slot(j).probs.sizes().vec(), (Shape{3, layout.width()}));
      }
    }
    EXPECT_EQ(any_slot, layout.width() > 0) << describe(config);
  }
}

TEST(RouterKind, ConfigKeysRoundTrip) {
  for (const auto& config : configs()) {
    nlohmann::ordered_json written = nlohmann::ordered_json::object();
    hero::router_kind(config.router).write(config, written);
    hero::JsonSection section("config.json", nlohmann::json::parse(written.dump()));
    hero::Config read;
    read.model = config.model;
    for (const auto* kind : hero::all_router_kinds()) kind->read(section, config.model, read.router);
    EXPECT_NO_THROW(section.reject_unknown()) << written.dump();
    const auto compared = [&](const hero::Field& field) {
      return field.has(hero::kInConfigJson) && hero::reads_option(config.router, field);
    };
    EXPECT_EQ(hero::differences(config, read, compared), std::vector<std::string>()) << written.dump();
  }
}

TEST(RouterKind, BaselineWritesNothing) {
  nlohmann::ordered_json written = nlohmann::ordered_json::object();
  auto config = small::qwen();
  config.router.kind = "baseline";
  hero::router_kind(config.router).write(config, written);
  EXPECT_TRUE(written.empty()) << written.dump();
}

}  // namespace router_kind_test
