// The router's equations and expert selection, with loops over tokens and experts.
#include "oracle/sparse.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace oracle {

using at::Tensor;

std::vector<int64_t> stages(int64_t layers, int64_t count) {
  std::vector<int64_t> stage_of;
  for (int64_t stage = 0; stage < count; ++stage) {
    const int64_t size = layers / count + (stage < layers % count ? 1 : 0);
    for (int64_t i = 0; i < size; ++i) stage_of.push_back(stage);
  }
  return stage_of;
}

std::vector<int64_t> stages(int64_t layers, const hero::RouterConfig& router) {
  if (router.stage_sizes.empty()) return stages(layers, router.stages);
  std::vector<int64_t> stage_of;
  for (size_t stage = 0; stage < router.stage_sizes.size(); ++stage) {
    for (int64_t i = 0; i < router.stage_sizes[stage]; ++i) stage_of.push_back(static_cast<int64_t>(stage));
  }
  return stage_of;
}

std::vector<int64_t> visible(int64_t l, const hero::RouterConfig& router,
                             const std::vector<int64_t>& stage_of) {
  std::vector<int64_t> newest_first;
  if (router.kind == "rmoe" && l > 1 && stage_of[l - 2] == stage_of[l - 1]) return {l - 1};
  for (int64_t j = l - 1; j >= 1 && router.kind == "hero"; --j) {
    if (router.window > 0 && static_cast<int64_t>(newest_first.size()) == router.window) break;
    if (router.history == hero::HistoryScope::kGlobal || stage_of[j - 1] == stage_of[l - 1])
      newest_first.push_back(j);
  }
  return {newest_first.rbegin(), newest_first.rend()};
}

Tensor rms(const Tensor& rows) {
  return ((rows * rows).sum(1, true) / static_cast<double>(rows.size(1))).sqrt();
}

Tensor router_logits(const Tensor& x, const Tensor& weight, const std::vector<Tensor>& history, int64_t l,
                     const hero::RouterConfig& router) {
  if (history.empty()) return at::matmul(x, weight.t());
  auto h = at::cat(history, 1);
  if (router.detach) h = h.detach();
  auto rho = at::ones({x.size(0), 1}, at::kDouble);
  if (router.scale)
    rho = rms(x) / (rms(h) + router.eps) *
          std::sqrt(static_cast<double>(l - 1) / static_cast<double>(history.size()));
  if (router.detach) rho = rho.detach();
  return at::matmul(at::cat({x, rho * h}, 1), weight.t());
}

Tensor gru_state(const Tensor& input, const Tensor& before, const Weights& w, const std::string& gru) {
  const int64_t p = before.size(1);
  const auto gate = [&](const char* of, const Tensor& rows, int64_t i) {
    const auto weight = w.at(gru + "weight_" + of).slice(0, i * p, (i + 1) * p),
               bias = w.at(gru + "bias_" + of).slice(0, i * p, (i + 1) * p);
    return at::matmul(rows, weight.t()) + bias;
  };
  const auto logistic = [](const Tensor& rows) { return 1.0 / (1.0 + (-rows).exp()); };
  const auto reset = logistic(gate("ih", input, 0) + gate("hh", before, 0)),
             update = logistic(gate("ih", input, 1) + gate("hh", before, 1)),
             candidate = (gate("ih", input, 2) + reset * gate("hh", before, 2)).tanh();
  return (1.0 - update) * candidate + update * before;
}

Tensor topk_indices(const Tensor& rows, int64_t k) {
  const auto values = rows.detach().to(at::kDouble).contiguous();
  auto ids = at::empty({rows.size(0), k}, at::kLong);
  for (int64_t t = 0; t < rows.size(0); ++t) {
    std::vector<int64_t> order(rows.size(1));
    std::iota(order.begin(), order.end(), 0);
    const double* row = values.const_data_ptr<double>() + t * rows.size(1);
    std::ranges::sort(order,
                      [&](int64_t a, int64_t b) { return row[a] != row[b] ? row[a] > row[b] : a < b; });
    for (int64_t i = 0; i < k; ++i) ids[t][i] = order[i];
  }
  return ids;
}

Tensor within_capacity(const Tensor& chosen, const Tensor& weights_TE, const Tensor& ids_TK, double factor,
                       hero::DropPolicy drop_policy) {
  const int64_t tokens = chosen.size(0), experts = chosen.size(1);
  const auto limit = static_cast<int64_t>(
      std::ceil(factor * static_cast<double>(ids_TK.numel()) / static_cast<double>(experts)));
  auto kept = chosen.clone();
  for (int64_t e = 0; e < experts; ++e) {
    std::vector<int64_t> assigned;
    for (int64_t t = 0; t < tokens; ++t) {
      if (chosen[t][e].item<double>() != 0) assigned.push_back(t);
    }
    if (drop_policy == hero::DropPolicy::kProbs) {
      const auto weight = [&](int64_t t) { return weights_TE[t][e].item<double>(); };
      std::ranges::sort(assigned, [&](int64_t a, int64_t b) {
        return weight(a) != weight(b) ? weight(a) > weight(b) : a < b;
      });
    }
    for (size_t i = limit; i < assigned.size(); ++i) kept[assigned[i]][e] = 0;
  }
  return kept;
}

namespace {

// Round-robin over experts, starting with expert l in layer l.
Tensor round_robin(int64_t tokens, int64_t k, int64_t experts, int64_t layer) {
  auto ids = at::empty({tokens, k}, at::kLong);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < k; ++i) ids[t][i] = (layer + t * k + i) % experts;
  }
  return ids;
}

}  // namespace

void select_experts(const hero::Config& config, const Tensor& bias_E, LayerRouting& r, const Pass& pass) {
  const auto& m = config.model;
  const int64_t tokens = r.logits.size(0), experts = m.num_experts, per_group = experts / m.n_group;
  const auto exponentials = (r.logits - std::get<0>(r.logits.max(1, true)).detach()).exp();
  r.probs = exponentials / exponentials.sum(1, true);
  r.scores = m.scoring_func == hero::ScoringFunc::kSigmoid ? 1.0 / (1.0 + (-r.logits).exp()) : r.probs;
  auto selection = r.scores.detach().clone();
  if (bias_E.defined()) selection = selection + bias_E;
  if (m.n_group > 1) {
    auto group_score = at::empty({tokens, m.n_group}, at::kDouble);
    for (int64_t g = 0; g < m.n_group; ++g) {
      const auto members = selection.slice(1, g * per_group, (g + 1) * per_group);
      group_score.select(1, g).copy_(members.gather(1, topk_indices(members, 2)).sum(1));
    }
    const auto best = topk_indices(group_score, m.topk_group);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t g = 0; g < m.n_group; ++g) {
        if (!best[t].eq(g).any().item<bool>())
          selection[t].slice(0, g * per_group, (g + 1) * per_group).fill_(-INFINITY);
      }
    }
  }
  r.ids = pass.training && config.router.force_balance
              ? round_robin(tokens, m.num_experts_per_tok, experts, r.layer)
              : topk_indices(selection, m.num_experts_per_tok);
  r.chosen = at::zeros({tokens, experts}, at::kDouble).scatter_(1, r.ids, 1.0);
  r.gates = r.scores * r.chosen;
  if (m.norm_topk_prob) r.gates = r.gates / (r.gates.sum(1, true) + m.norm_topk_eps);
  r.gates = r.gates * m.routed_scaling_factor;
  const double capacity = pass.training ? config.router.capacity_factor : config.router.eval_capacity_factor;
  r.kept = capacity > 0
               ? within_capacity(r.chosen, r.gates.detach(), r.ids, capacity, config.router.drop_policy)
               : r.chosen;
  r.gates = r.gates * r.kept;
}

}  // namespace oracle
