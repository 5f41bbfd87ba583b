// router.kind = "hero": W = [W_O | W_R] [E, D + M*E]; layer l reads the probabilities of the layers in S(l).
#include <algorithm>
#include <nlohmann/json.hpp>

#include "config/json_section.h"
#include "model/counts.h"
#include "model/router_kind.h"

namespace hero {
namespace {

using nlohmann::ordered_json;

bool has_gradient_through_history(const Config& config) {
  return !config.router.detach &&
         std::ranges::any_of(visible_counts(config), [](int64_t n) { return n > 0; });
}

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
  // The kernels take the operands as they are; with gradients through the history, operators of LibTorch run
  // (ops::route_through).
  bool widens_operands(const Config& config) const override { return has_gradient_through_history(config); }
  // Per token the joined history, its product with W_R before scaling, the two RMS values, the denominator
  // and rho; and copies in fp32 of weights in bf16.
  double saved_values(const Config& config, int64_t seen, bool, double tokens) const override {
    if (!has_gradient_through_history(config)) return 0;
    const double d = to_double(config.model.hidden_size), e = to_double(config.model.num_experts),
                 history = to_double(seen) * e;
    const bool narrow = config.train.dtype == Dtype::kBf16 && config.router.dtype == RouterDtype::kTrain;
    double per_token = 0;
    if (seen > 0) per_token = history + (config.router.scale ? e + 4 : 1);
    return tokens * per_token + (narrow ? e * (d + history) : 0);
  }

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
