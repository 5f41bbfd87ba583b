#include "model/mtp.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "model/recompute.h"
#include "ops/ops.h"

namespace hero {
namespace {

at::Tensor add_norm(Parameters& parameters, const ModelConfig& model, int64_t k, const std::string& weight) {
  return parameters.add(mtp_weight_name(model, k, weight), {model.hidden_size}, constant_init(1),
                        /*decay=*/false);
}

}  // namespace

MtpModule::MtpModule(Parameters& parameters, int64_t k, const Config& config, const HistoryLayout& layout,
                     const ModelShard& shard)
    : k_(k),
      eps_(config.model.rms_norm_eps),
      embedding_norm_(add_norm(parameters, config.model, k, "enorm")),
      hidden_norm_(add_norm(parameters, config.model, k, "hnorm")),
      projection_(parameters.add(mtp_weight_name(config.model, k, "eh_proj"),
                                 {config.model.hidden_size, 2 * config.model.hidden_size},
                                 normal_init(config.model.initializer_range), /*decay=*/true)),
      layer_(parameters, config.model.num_hidden_layers + k - 1, moe_layers(config.model) + k, config, layout,
             shard),
      head_norm_(add_norm(parameters, config.model, k, "shared_head.norm")) {}

MtpModule::Output MtpModule::operator()(const at::Tensor& embedded, const at::Tensor& hidden,
                                        const RotaryTable& rotary,
                                        const std::shared_ptr<RoutingHistory>& history,
                                        const ForwardContext& context, bool recompute) const {
  const int64_t missing = std::min(k_, embedded.size(1));
  const auto later = at::constant_pad_nd(embedded.slice(1, missing), {0, 0, 0, missing});
  const auto joined =
      at::cat({ops::rms_norm(later, embedding_norm_, eps_), ops::rms_norm(hidden, hidden_norm_, eps_)}, 2);
  const auto x = ops::linear(joined.view({-1, joined.size(2)}), projection_).view(hidden.sizes());
  auto out = recompute ? recompute_layer(layer_, x, rotary, history, context)
                       : layer_(x, rotary, *history, context, nullptr);
  return {ops::rms_norm(out.x, head_norm_, eps_), std::move(*out.routing)};
}

at::Tensor mtp_targets(const at::Tensor& labels, int64_t k, const at::Tensor& starts_BS) {
  auto targets = at::constant_pad_nd(labels.slice(1, k + 1), {0, k}, -1);
  if (starts_BS.defined()) {
    const auto last_input = at::constant_pad_nd(starts_BS.slice(1, k), {0, k}, -1);
    targets = at::where(last_input == starts_BS, targets, -1);
  }
  return targets.reshape({-1});
}

std::string mtp_weight_name(const ModelConfig& model, int64_t k, const std::string& weight) {
  return "model.layers." + std::to_string(model.num_hidden_layers + k - 1) + "." + weight + ".weight";
}

}  // namespace hero
