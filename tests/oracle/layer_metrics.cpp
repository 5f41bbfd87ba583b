#include "oracle/layer_metrics.h"

#include <ATen/core/grad_mode.h>

#include <cmath>

#include "oracle/sparse.h"

namespace oracle {
namespace {

using at::Tensor;

double total(const Tensor& values) { return values.sum().item<double>(); }

double summed_variance(const Tensor& logits_TE) {
  return total((logits_TE - logits_TE.mean(1, true)).square().mean(1));
}

}  // namespace

void LayerSums::add(const hero::Config& config, const Weights& weights, const LayerRouting& r) {
  const at::NoGradGuard no_grad;
  tokens += static_cast<double>(r.x.size(0));
  entropy -= total(at::xlogy(r.probs, r.probs));
  const auto assigned = r.chosen.sum(0), kept = r.kept.sum(0);
  assigned_E = assigned_E.defined() ? assigned_E + assigned : assigned;
  kept_E = kept_E.defined() ? kept_E + kept : kept;
  rms_hidden += total(rms(r.x));
  has_history = r.history.defined();
  if (config.router.kind != "hero" || !has_history) {
    hidden_variance += summed_variance(r.logits);
    if (has_history) rms_history += total(rms(r.history));
    return;
  }
  const bool mixtral = config.model.model_type == hero::ModelType::kMixtral;
  const auto& weight = weights.at("model.layers." + std::to_string(r.decoder_layer) +
                                  (mixtral ? ".block_sparse_moe" : ".mlp") + ".gate.weight");
  const auto hidden = at::matmul(r.x, weight.slice(1, 0, r.x.size(1)).t());
  hidden_variance += summed_variance(hidden);
  history_variance += summed_variance(r.logits - hidden);
  rms_history += total(rms(r.history));
  const int64_t visible = r.history.size(1) / r.logits.size(1);
  const double depth_factor = std::sqrt(static_cast<double>(r.layer - 1) / static_cast<double>(visible));
  rho += config.router.scale ? total(rms(r.x) / (rms(r.history) + config.router.eps)) * depth_factor
                             : static_cast<double>(r.x.size(0));
}

std::map<std::string, double> LayerSums::metrics() const {
  const double busiest = kept_E.max().item<double>(), all = total(kept_E);
  std::map<std::string, double> found = {
      {"max_expert_share", busiest / tokens},
      {"max_over_mean", all > 0 ? busiest * static_cast<double>(kept_E.size(0)) / all : 0},
      {"entropy", entropy / tokens},
      {"dropped", total(assigned_E) - all},
      {"rms_hidden", rms_hidden / tokens}};
  if (!has_history) return found;
  found["rms_history"] = rms_history / tokens;
  found["rho"] = rho / tokens;
  found["history_variance_share"] = history_variance / (hidden_variance + history_variance);
  return found;
}

}  // namespace oracle
