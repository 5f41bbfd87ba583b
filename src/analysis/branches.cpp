#include "analysis/branches.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "analysis/coupling.h"

namespace hero {
namespace {

constexpr int64_t kChunkTokens = 4096;

const Moe& moe_of(const Transformer& model, int64_t l) {
  const auto& layers = model.layers();
  const auto place = std::ranges::find_if(
      layers, [l](const DecoderLayer& layer) { return layer.moe() && layer.moe()->router().layer() == l; });
  TORCH_INTERNAL_ASSERT(place != layers.end());
  return *place->moe();
}

double count_equal_top1(const at::Tensor& a, const at::Tensor& b) {
  return static_cast<double>(a.argmax(1).eq(b.argmax(1)).sum().item<int64_t>());
}

double variance_over_experts(const at::Tensor& z) {
  return z.var(1, /*unbiased=*/false).sum().item<double>();
}

}  // namespace

std::vector<Routing> select_tokens(const std::vector<Routing>& routings, const at::Tensor& tokens) {
  std::vector<Routing> out = routings;
  for (auto& r : out) {
    for (auto* values : {&r.logits, &r.probs, &r.stats, &r.ids, &r.weights})
      *values = values->index_select(0, tokens);
  }
  return out;
}

Branches branches(const Transformer& model, const std::vector<Routing>& routings, int64_t l) {
  const auto& routing = routings[l - 1];
  const int64_t e = model.layout().experts();
  Branches out;
  out.total = out.hidden = routing.logits.to(at::kDouble);
  const auto& seen = model.layout().visible(l);
  if (seen.empty()) return out;
  const bool stored = model.config().router.detach;  // rounded to the history's dtype
  const auto weight = moe_of(model, l).router().weight().slice(1, model.config().model.hidden_size);
  const auto rho = routing.stats.narrow(1, ops::kRho, 1).to(at::kDouble);
  out.history = at::zeros_like(out.total);
  for (size_t m = 0; m < seen.size(); ++m) {
    const auto first = static_cast<int64_t>(m) * e;
    const auto& probs = routings[seen[m] - 1].probs;
    const auto q = (stored ? probs.to(router_dtype(model.config())) : probs).to(at::kDouble);
    const auto block = weight.slice(1, first, first + e).to(at::kDouble);
    out.predecessors.push_back(rho * at::mm(q, block.t()));
    out.centered.push_back(rho * at::mm(q, centered_block(block).t()));
    out.history += out.predecessors.back();
  }
  out.hidden = out.total - out.history;
  return out;
}

at::Tensor selected_experts(const Transformer& model, int64_t l, const at::Tensor& logits_TE) {
  const auto& config = model.config();
  return sparse_route(logits_TE, logits_TE.softmax(1), moe_of(model, l).bias(), config.model, config.router,
                      l, /*capacity_factor=*/0)
      .ids;
}

double overlap(const at::Tensor& ids, const at::Tensor& others) {
  const auto both = ids.unsqueeze(2).eq(others.unsqueeze(1)).sum().item<int64_t>();
  return static_cast<double>(both) / static_cast<double>(ids.size(1));
}

double kl_divergence(const at::Tensor& z, const at::Tensor& other) {
  const auto log_q = z.to(at::kDouble).log_softmax(1), log_p = other.to(at::kDouble).log_softmax(1);
  return (log_q.exp() * (log_q - log_p)).sum().item<double>();
}

HistorySums::HistorySums(const Transformer& model)
    : model_(&model), sums_(static_cast<size_t>(model.layout().layers())) {
  const int64_t layers = model.layout().layers();
  for (auto* removal : {&raw_, &centered_})
    *removal = {at::zeros({layers, layers}, at::kDouble), at::zeros({layers, layers}, at::kDouble)};
}

void HistorySums::add(const std::vector<Routing>& routings) {
  at::NoGradGuard no_grad;
  const int64_t tokens = routings[0].logits.size(0);
  tokens_ += tokens;
  for (int64_t first = 0; first < tokens; first += kChunkTokens) {
    const auto places = at::arange(first, std::min(first + kChunkTokens, tokens), routings[0].ids.options());
    const auto some = tokens > kChunkTokens ? select_tokens(routings, places) : routings;
    for (int64_t l = 1; l <= model_->layout().layers(); ++l) {
      if (!model_->layout().visible(l).empty()) add_layer(some, l);
    }
  }
}

void HistorySums::add_layer(const std::vector<Routing>& routings, int64_t l) {
  const auto parts = branches(*model_, routings, l);
  const auto& ids = routings[l - 1].ids;
  // Scores in the model's own dtype, so that rounding and ties are the same.
  const auto chosen = [&](const at::Tensor& z) {
    return selected_experts(*model_, l, z.to(routings[l - 1].logits.scalar_type()));
  };
  auto& sums = sums_[l - 1];
  sums.var_hidden += variance_over_experts(parts.hidden);
  sums.var_history += variance_over_experts(parts.history);
  sums.agreement += overlap(ids, chosen(parts.hidden));
  sums.agreement_1 += count_equal_top1(parts.total, parts.hidden);
  sums.history_only += overlap(ids, std::get<1>(parts.history.topk(ids.size(1), 1)));
  sums.history_only_1 += count_equal_top1(parts.total, parts.history);
  sums.kl += kl_divergence(parts.total, parts.history);
  add_removal(raw_, parts.predecessors, parts.total, routings[l - 1]);
  add_removal(centered_, parts.centered, parts.total, routings[l - 1]);
}

void HistorySums::add_removal(Removal& removal, const std::vector<at::Tensor>& contributions,
                              const at::Tensor& total, const Routing& routing) {
  const auto& seen = model_->layout().visible(routing.layer);
  const auto tokens = static_cast<double>(routing.ids.size(0));
  for (size_t m = 0; m < seen.size(); ++m) {
    const auto without = total - contributions[m];
    const auto ids = selected_experts(*model_, routing.layer, without.to(routing.logits.scalar_type()));
    removal.change_LL[routing.layer - 1][seen[m] - 1] += tokens - overlap(routing.ids, ids);
    removal.kl_LL[routing.layer - 1][seen[m] - 1] += kl_divergence(total, without);
  }
}

Removal HistorySums::removal(Contribution removed) const {
  const auto& sums = removed == Contribution::kRaw ? raw_ : centered_;
  const auto n = static_cast<double>(tokens_);
  return {sums.change_LL / n, sums.kl_LL / n};
}

HistoryUse HistorySums::use(int64_t l) const {
  const auto& s = sums_[l - 1];
  const auto n = static_cast<double>(tokens_);
  return {.variance_share = s.var_history / (s.var_hidden + s.var_history),
          .agreement = s.agreement / n,
          .agreement_1 = s.agreement_1 / n,
          .history_only = s.history_only / n,
          .history_only_1 = s.history_only_1 / n,
          .history_only_kl = s.kl / n};
}

std::optional<double> initial_variance_share(const Config& config, const HistoryLayout& layout, int64_t l) {
  if (layout.visible(l).empty() || config.router.init == RouterInit::kZero) return 0.0;
  if (!config.router.scale) return std::nullopt;
  const auto history = static_cast<double>((l - 1) * layout.experts());
  return history / (static_cast<double>(config.model.hidden_size) + history);
}

}  // namespace hero
