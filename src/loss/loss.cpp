#include "loss/loss.h"

#include <ATen/ATen.h>

#include "ops/count.h"
#include "ops/ops.h"

namespace hero {

BalanceState BalanceState::uniform(int64_t layers, int64_t experts, at::Device device) {
  return {at::full({layers, experts}, 1.0 / static_cast<double>(experts),
                   at::TensorOptions(device).dtype(at::kDouble))};
}

at::Tensor balance_loss(const at::Tensor& scores_TE, const at::Tensor& ids_TK, BalanceScope scope,
                        int64_t sequence, const at::Tensor& global_shares_E) {
  const int64_t experts = scores_TE.size(1),
                groups = scope == BalanceScope::kSequence ? scores_TE.size(0) / sequence : 1;
  const auto mean = scores_TE.view({groups, -1, experts}).mean(1);
  if (scope == BalanceScope::kGlobal)
    return (global_shares_E.to(scores_TE.scalar_type()) * mean[0]).sum() * experts;
  const auto ids = ids_TK.view({groups, -1});
  const auto shares =
      ops::count_assignments(ids, experts).to(scores_TE.scalar_type()).div_(static_cast<double>(ids.size(1)));
  return (shares * mean).sum() * (static_cast<double>(experts) / static_cast<double>(groups));
}

at::Tensor pooled_balance_loss(const std::vector<at::Tensor>& scores_TE,
                               const std::vector<at::Tensor>& ids_TK) {
  const auto scores = at::cat(scores_TE, 0);
  const auto ids = at::cat(ids_TK, 0);
  return balance_loss(scores, ids, BalanceScope::kMicroBatch, /*sequence=*/1, {}) *
         static_cast<double>(ids.size(1));
}

at::Tensor z_loss(const at::Tensor& logits_TE) { return logits_TE.logsumexp(1).pow(2).mean(); }

at::Tensor topk_mass(const at::Tensor& probs_TE, int64_t k) {
  const auto ids_TK = ops::top_experts(probs_TE.detach(), {}, k, /*groups=*/1, /*kept_groups=*/1);
  return ops::expert_weights(probs_TE, ids_TK, /*normalize=*/false, 0, 1).sum(-1);
}

at::Tensor coupling_loss(const std::vector<at::Tensor>& masses_T, int64_t pairs) {
  at::Tensor sum;
  for (size_t l = 1; l < masses_T.size(); ++l) {
    const auto product = (masses_T[l - 1] * masses_T[l]).mean();
    sum = sum.defined() ? sum + product : product;
  }
  return sum.defined() ? -sum / static_cast<double>(pairs) : at::Tensor();
}

namespace {

// Scores that sum to 1 for every token.
at::Tensor normalized_scores(const Routing& routing, const ModelConfig& model) {
  const auto scores = routing_scores(routing.logits, routing.probs, model);
  return model.has_sigmoid_scores() ? scores / scores.sum(1, true) : scores;
}

// Mean over modules of the cross-entropy per target. A micro-batch may have no target of a module.
at::Tensor mtp_loss(const Transformer& model, const Transformer::Output& output,
                    const ModuleTargets& modules) {
  TORCH_CHECK(modules.targets_T.size() == output.modules_TD.size(), "expected targets of ",
              output.modules_TD.size(), " modules, got ", modules.targets_T.size());
  at::Tensor mean;
  const auto count = static_cast<double>(output.modules_TD.size());
  for (size_t k = 0; k < output.modules_TD.size(); ++k) {
    const auto& targets = modules.targets_T[k];
    const auto sum = ops::linear_cross_entropy(output.modules_TD[k], model.head(), targets);
    const auto term =
        (modules.normalizers.empty() ? sum / targets.ge(0).sum().clamp_min(1).to(sum.scalar_type())
                                     : sum / modules.normalizers[k]) /
        count;
    mean = mean.defined() ? mean + term : term;
  }
  return mean;
}

}  // namespace

Losses compute_losses(const Transformer& model, const Transformer::Output& output,
                      const at::Tensor& targets_T, int64_t sequence, const BalanceState& balance,
                      bool is_last_chunk, const at::Tensor& mass_T, std::optional<double> normalizer,
                      const ModuleTargets& modules) {
  const auto& config = model.config();
  const auto& router = config.router;
  const auto layers = static_cast<double>(model.layout().layers());
  // Losses are not read here, which would synchronize with the GPU.
  const auto zero = at::zeros({}, at::TensorOptions(model.device()).dtype(at::kDouble));
  Losses losses{
      .total = {}, .lm = zero, .mtp = zero, .balance = zero, .z = zero, .coupling = zero, .mass_T = {}};
  const auto value = [](const at::Tensor& term) { return term.detach().to(at::kDouble); };
  if (is_last_chunk) {
    const auto sum = ops::linear_cross_entropy(output.hidden_TD, model.head(), targets_T);
    losses.total = normalizer ? sum / *normalizer : sum / targets_T.ge(0).sum().to(sum.scalar_type());
    losses.lm = value(losses.total);
  }
  const auto add = [&](const at::Tensor& term, double coefficient) {
    losses.total = losses.total.defined() ? losses.total + term * coefficient : term * coefficient;
  };
  if (!output.modules_TD.empty()) {
    const auto term = mtp_loss(model, output, modules);
    losses.mtp = value(term);
    add(term, config.train.mtp_loss);
  }
  const bool balanced = router.balance != BalanceScope::kNone && router.balance_loss > 0,
             pooled = router.balance == BalanceScope::kPooled;
  std::vector<at::Tensor> all_scores, all_ids;
  for (const auto& r : output.routings) {
    if (balanced) {
      all_scores.push_back(normalized_scores(r, config.model));
      all_ids.push_back(r.ids);
    }
    if (balanced && !pooled) {
      const auto term =
          balance_loss(all_scores.back(), r.ids, router.balance, sequence, balance.shares_LE[r.layer - 1]);
      losses.balance = losses.balance + value(term) / layers;
      add(term, router.balance_loss);
    }
    if (router.z_loss > 0) {
      const auto term = z_loss(r.logits);
      losses.z = losses.z + value(term) / layers;
      add(term, router.z_loss);
    }
  }
  if (balanced && pooled) {
    const auto term = pooled_balance_loss(all_scores, all_ids);
    losses.balance = value(term);
    add(term, router.balance_loss);
  }
  if (router.coupling_loss > 0) {
    std::vector<at::Tensor> masses;
    if (mass_T.defined()) masses.push_back(mass_T);
    for (const auto& r : output.routings)
      masses.push_back(topk_mass(r.probs, config.model.num_experts_per_tok));
    if (!masses.empty()) losses.mass_T = masses.back();
    const auto term = coupling_loss(masses, model.layout().layers() - 1);
    if (term.defined()) {
      losses.coupling = value(term);
      add(term, router.coupling_loss);
    }
  }
  return losses;
}

}  // namespace hero
