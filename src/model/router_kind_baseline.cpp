// router.kind = "baseline": W [E, D], logits from the hidden state alone.
#include "model/counts.h"
#include "model/router_kind.h"

namespace hero {
namespace {

class BaselineRouterKind final : public RouterKind {
 public:
  std::string name() const override { return "baseline"; }

  std::vector<int64_t> visible(int64_t, const std::vector<int64_t>&, const RouterConfig&) const override {
    return {};
  }
  int64_t history_width(int64_t, const RouterConfig&) const override { return 0; }

  std::vector<RouterWeight> weights(const Config& config, int64_t, int64_t) const override {
    return {{"gate.weight", {config.model.num_experts, config.model.hidden_size}}};
  }
  std::vector<CostItem> costs(const Config& config, int64_t, int64_t) const override {
    const double weights =
        static_cast<double>(config.model.num_experts) * static_cast<double>(config.model.hidden_size);
    // A row of zeros for the history, next to that of another kind.
    return {gemm_cost(kRouterCost, weights, weights), gemm_cost(kHistoryCost, 0, 0)};
  }
  double saved_values(const Config&, int64_t, bool, double) const override { return 0; }

  void write(const Config&, nlohmann::ordered_json&) const override {}
  void read(JsonSection&, const ModelConfig&, RouterConfig&) const override {}
};

}  // namespace

const RouterKind& baseline_router_kind() {
  static const BaselineRouterKind kind{};
  return kind;
}

}  // namespace hero
