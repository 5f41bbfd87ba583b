#include "perf/history_costs.h"

#include "config/mtp_layers.h"
#include "config/router_kinds.h"
#include "model/counts.h"
#include "model/history_message.h"
#include "model/router.h"
#include "model/router_kind.h"

namespace hero {

HistoryCosts::HistoryCosts(const Config& config) : config_(config), sizes_(config), next_moe_layer_{1} {
  const ModelConfig& m = config.model;
  for (const int64_t number : moe_layer_numbers_with_modules(m))
    next_moe_layer_.push_back(next_moe_layer_.back() + (number > 0));
  const int64_t layers = moe_layers(m);
  if (layers > 0 && router_kind(config.router).history_width(m.num_experts, config.router) > 0)
    history_.emplace(layers, m.num_experts, config.router, m.num_nextn_predict_layers);
}

double HistoryCosts::bytes(double tokens, const Layout& layout, int64_t stage) const {
  // With gradients through the history there are no slots: each layer saves the probabilities that it reads.
  const bool in_layers = !config_.router.detach && router_kind_info(config_.router).stores_probs;
  if (!history_ || in_layers) return 0;
  auto bounds = layout_bounds(config_, layout);
  bounds.back() = decoder_layers_with_modules(config_.model);
  int64_t slots = 0;
  for (size_t chunk = stage; chunk + 1 < bounds.size(); chunk += layout.pipeline)
    slots += history_->slots_of(next_moe_layer_[bounds[chunk]], next_moe_layer_[bounds[chunk + 1]]);
  return tokens * to_double(slots) * (to_double(history_->width()) * sizes_.router + sizes_.accum);
}

double HistoryCosts::crossing_bytes(double tokens, const std::vector<int64_t>& bounds, int64_t chunk) const {
  if (!history_) return 0;
  const auto needed = std::ssize(history_->needed_from(next_moe_layer_[bounds[chunk + 1]]));
  return tokens * to_double(needed * history_message_width(history_->width(), history_top(config_),
                                                           router_dtype(config_)));
}

double HistoryCosts::crossing_mass_bytes(double tokens, const std::vector<int64_t>& bounds,
                                         int64_t chunk) const {
  const int64_t l = next_moe_layer_[bounds[chunk + 1]];
  const bool sent = config_.router.coupling_loss > 0 && l > 1 && l < next_moe_layer_.back();
  return sent ? tokens * sizes_.accum : 0;
}

}  // namespace hero
