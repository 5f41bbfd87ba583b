// router.kind = "hero": W = [W_O | W_R] [E, D + M*E]; layer l reads the probabilities of the layers in S(l).
#include <nlohmann/json.hpp>

#include "config/json_section.h"
#include "model/counts.h"
#include "model/router_kind.h"

namespace hero {
namespace {

using nlohmann::ordered_json;

class HeroRouterKind final : public RouterKind {
 public:
  std::string name() const override { return "hero"; }

  std::vector<int64_t> visible(int64_t l, const std::vector<int64_t>& stage_of,
                               const RouterConfig& router) const override {
    return visible_layers(l, stage_of, router);
  }
  int64_t history_width(int64_t experts, const RouterConfig&) const override { return experts; }

  std::vector<RouterWeight> weights(const Config& config, int64_t, int64_t seen) const override {
    const int64_t e = config.model.num_experts;
    return {{"gate.weight", {e, config.model.hidden_size + seen * e}, seen * e}};
  }
  std::vector<CostItem> costs(const Config& config, int64_t, int64_t seen) const override {
    const auto d = static_cast<double>(config.model.hidden_size),
               e = static_cast<double>(config.model.num_experts);
    const double history = static_cast<double>(seen) * e * e;
    return {gemm_cost(kRouterCost, d * e, d * e),
            gemm_cost(kHistoryCost, history, history, /*input_gradient=*/!config.router.detach)};
  }
  double saved_values(const Config&, int64_t, bool, double) const override { return 0; }

  void write(const Config& config, ordered_json& config_json) const override {
    const auto& r = config.router;
    config_json["hero_router"] = {{"window", r.window ? ordered_json(r.window) : ordered_json(nullptr)},
                                  {"scale", r.scale},
                                  {"eps", r.eps},
                                  {"detach", r.detach},
                                  {"history", name_of(r.history)},
                                  {"stages", stage_of_layers(moe_layers(config.model), r)}};
  }
  void read(JsonSection& config_json, const ModelConfig& m, RouterConfig& r) const override {
    auto router = config_json.section("hero_router");
    if (!router) return;
    r.kind = "hero";
    r.window = router->integer("window", 0);
    if (router->has("window") && r.window < 1) router->reject("window", "null or an integer of at least 1");
    r.scale = router->flag("scale", true);
    r.eps = router->number("eps", 1e-6);
    r.detach = router->flag("detach", true);
    const auto history = find_choice<HistoryScope>(router->text("history", name_of(HistoryScope::kStage)));
    if (!history) router->reject("history", "\"stage\" or \"global\"");
    r.history = *history;
    read_stages(*router, m, r);
    router->reject_unknown();
  }
};

}  // namespace

const RouterKind& hero_router_kind() {
  static const HeroRouterKind kind{};
  return kind;
}

}  // namespace hero
