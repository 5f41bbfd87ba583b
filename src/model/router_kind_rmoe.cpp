// router.kind = "rmoe", the Layerwise Recurrent Router (arXiv 2408.06793, Eq. 4 to 6): Z = W h with the state
// h = GRU(P x, h of the preceding layer). The layers of a router stage share the GRU; a stage starts with h =
// 0.
#include <nlohmann/json.hpp>

#include "config/json_section.h"
#include "model/counts.h"
#include "model/router_kind.h"

namespace hero {
namespace {

class RmoeRouterKind final : public RouterKind {
 public:
  std::string name() const override { return "rmoe"; }

  std::vector<int64_t> visible(int64_t l, const std::vector<int64_t>& stage_of,
                               const RouterConfig&) const override {
    if (l == 1 || stage_of[l - 2] != stage_of[l - 1]) return {};
    return {l - 1};
  }
  int64_t history_width(int64_t, const RouterConfig& router) const override { return router.state_size; }

  // The GRU's weights are those of torch.nn.GRUCell: reset gate, update gate, candidate.
  std::vector<RouterWeight> weights(const Config& config, int64_t, int64_t seen) const override {
    const int64_t p = config.router.state_size;
    std::vector<RouterWeight> list = {{"gate.weight", {config.model.num_experts, p}},
                                      {"gate.projection.weight", {p, config.model.hidden_size}}};
    if (seen > 0) return list;
    list.insert(list.end(), {{"gate.gru.weight_ih", {3 * p, p}},
                             {"gate.gru.weight_hh", {3 * p, p}},
                             {"gate.gru.bias_ih", {3 * p}},
                             {"gate.gru.bias_hh", {3 * p}}});
    return list;
  }
  std::vector<CostItem> costs(const Config& config, int64_t, int64_t seen) const override {
    const double p = to_double(config.router.state_size), gates = 3 * p * p,
                 own = p * to_double(config.model.hidden_size + config.model.num_experts);
    const double shared = seen > 0 ? 0 : gates + 3 * p;  // of one of the GRU's two matrices and its bias
    return {gemm_cost(kRouterCost, own + shared, own + gates),
            gemm_cost(kHistoryCost, shared, gates, /*input_gradient=*/!config.router.detach && seen > 0)};
  }
  bool widens_operands(const Config&) const override { return true; }
  // Per token the projection, the preceding state, three gates, and for gradients of products the candidate,
  // its recurrent part and its difference to the preceding state; the new state. A router in fp32 saves the
  // state in the history itself. One in bf16 saves copies in fp32 of the state and of the weights through
  // which gradients flow back, and not the history in bf16, which takes half as much.
  double saved_values(const Config& config, int64_t seen, bool reached, double tokens) const override {
    const double p = to_double(config.router.state_size), d = to_double(config.model.hidden_size),
                 e = to_double(config.model.num_experts);
    const bool narrow = config.train.dtype == Dtype::kBf16 && config.router.dtype == RouterDtype::kTrain;
    if (!narrow) return tokens * (seen > 0 ? 8 : 9) * p;
    const double state_gates = config.router.detach || seen == 0 ? 0 : 3 * p * p;
    const double narrow_history = seen > 0 ? p / 2 : 0;
    return tokens * (9 * p - narrow_history) + p * ((reached ? d : 0) + e) + 3 * p * p + state_gates;
  }

  void write(const Config& config, nlohmann::ordered_json& config_json) const override {
    const RouterConfig& r = config.router;
    config_json["rmoe_router"] = {{"state_size", r.state_size},
                                  {"detach", r.detach},
                                  {"stages", stage_of_layers(moe_layers(config.model), r)}};
  }
  void read(JsonSection& config_json, const ModelConfig& m, RouterConfig& r) const override {
    auto router = config_json.section("rmoe_router");
    if (!router) return;
    r.kind = "rmoe";
    r.state_size = router->integer("state_size");
    if (r.state_size < 1) router->reject("state_size", "an integer of at least 1");
    r.detach = router->flag("detach", true);
    read_stages(*router, m, r);
    router->reject_unknown();
  }
};

}  // namespace

const RouterKind& rmoe_router_kind() {
  static const RmoeRouterKind kind{};
  return kind;
}

}  // namespace hero
