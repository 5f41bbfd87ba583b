// The training loss of one micro-batch, term by term.
#include <algorithm>

#include "oracle/oracle.h"

namespace oracle {

using at::Tensor;

namespace {

// Scores that sum to 1.
Tensor normalized(const LayerRouting& r) { return r.scores / r.scores.sum(1, true); }

// E * sum_e f_e P_e of one layer.
Tensor balance(const hero::Config& config, const LayerRouting& r, int64_t sequence, const Tensor& shares_E) {
  const auto scope = config.router.balance;
  const auto scores = normalized(r);
  const int64_t tokens = scores.size(0), experts = config.model.num_experts;
  const auto of_tokens = [&](int64_t begin, int64_t end) {
    const auto f = scope == hero::BalanceScope::kGlobal
                       ? shares_E
                       : r.chosen.slice(0, begin, end).sum(0) /
                             static_cast<double>((end - begin) * config.model.num_experts_per_tok);
    return (f * scores.slice(0, begin, end).mean(0)).sum() * experts;
  };
  if (scope == hero::BalanceScope::kNone) return at::zeros({}, at::kDouble);
  if (scope != hero::BalanceScope::kSequence) return of_tokens(0, tokens);
  std::vector<Tensor> sequences;
  for (int64_t first = 0; first < tokens; first += sequence)
    sequences.push_back(of_tokens(first, first + sequence));
  return at::stack(sequences).mean();
}

// The same over the tokens of all layers, with fractions that sum to K.
Tensor pooled_balance(const hero::Config& config, const Result& result) {
  std::vector<Tensor> scores, chosen;
  for (const auto& r : result.layers) {
    scores.push_back(normalized(r));
    chosen.push_back(r.chosen);
  }
  return (at::cat(chosen, 0).mean(0) * at::cat(scores, 0).mean(0)).sum() * config.model.num_experts;
}

// Minus the mean product of adjacent layers' top-K probability masses.
Tensor coupling(const hero::Config& config, const Result& result) {
  std::vector<Tensor> products;
  const auto mass = [&](const LayerRouting& r) {
    return r.probs.gather(1, topk_indices(r.probs, config.model.num_experts_per_tok)).sum(1);
  };
  for (size_t i = 1; i < result.layers.size(); ++i)
    products.push_back((mass(result.layers[i - 1]) * mass(result.layers[i])).mean());
  return products.empty() ? at::zeros({}, at::kDouble) : -at::stack(products).mean();
}

// Mean cross-entropy of module k over the positions whose token i + k is an input of the sequence, and with
// train.document_mask of the same document.
Tensor module_loss(const hero::Config& config, int64_t k, const Tensor& logits_BSV, const Tensor& targets_BS,
                   const Tensor& documents_BS) {
  const auto log_probs = logits_BSV - logits_BSV.exp().sum(2, true).log();
  Tensor sum = at::zeros({}, at::kDouble);
  int64_t count = 0;
  for (int64_t b = 0; b < targets_BS.size(0); ++b) {
    for (int64_t i = 0; i + k < targets_BS.size(1); ++i) {
      if (config.train.document_mask && documents_BS.defined() &&
          !documents_BS[b][i].equal(documents_BS[b][i + k]))
        continue;
      sum = sum - log_probs[b][i][targets_BS[b][i + k].item<int64_t>()];
      ++count;
    }
  }
  return sum / static_cast<double>(std::max<int64_t>(count, 1));
}

}  // namespace

Losses losses(const hero::Config& config, const Result& result, const Tensor& targets_T, int64_t sequence,
              const Tensor& shares_LE, const Tensor& documents_BS) {
  const auto& router = config.router;
  const auto layers = static_cast<int64_t>(result.layers.size()), tokens = targets_T.size(0);
  Losses out;
  const auto logits = result.logits.view({tokens, -1});
  out.lm = -(logits - logits.exp().sum(1, true).log()).gather(1, targets_T.unsqueeze(1)).mean();
  out.mtp = at::zeros({}, at::kDouble);
  const auto modules = static_cast<int64_t>(result.modules.size());
  for (int64_t k = 1; k <= modules; ++k) {
    out.mtp =
        out.mtp +
        module_loss(config, k, result.modules[k - 1], targets_T.view({-1, sequence}), documents_BS) / modules;
  }
  out.balance = out.z = out.coupling = at::zeros({}, at::kDouble);
  const bool pooled = router.balance == hero::BalanceScope::kPooled;
  if (router.balance_loss > 0 && pooled) out.balance = pooled_balance(config, result);
  for (int64_t i = 0; i < layers; ++i) {
    const auto& r = result.layers[i];
    if (router.balance_loss > 0 && !pooled)
      out.balance = out.balance + balance(config, r, sequence, shares_LE[i]) / layers;
    if (router.z_loss > 0) out.z = out.z + r.logits.exp().sum(1).log().pow(2).mean() / layers;
  }
  if (router.coupling_loss > 0) out.coupling = coupling(config, result);
  out.total = out.lm + out.mtp * config.train.mtp_loss +
              out.balance * (pooled ? 1 : layers) * router.balance_loss + out.z * layers * router.z_loss +
              out.coupling * router.coupling_loss;
  return out;
}

}  // namespace oracle
