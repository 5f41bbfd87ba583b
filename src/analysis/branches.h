#pragma once
// Router logits decomposed into branches, Z = Z_O + sum_p Z_R^(p), and the effect of each on expert
// selection.
#include "model/transformer.h"

namespace hero {

/// The rows `tokens` (int64) of every layer's routing; `assigned` and `counts` are unchanged.
std::vector<Routing> select_tokens(const std::vector<Routing>& routings, const at::Tensor& tokens);

/// One layer's router logits by branch, fp64.
struct Branches {
  at::Tensor total;                      ///< Z [T, E], the router's output
  at::Tensor hidden;                     ///< Z_O = Z - Z_R
  at::Tensor history;                    ///< Z_R; undefined if M_l = 0
  std::vector<at::Tensor> predecessors;  ///< Z_R^(p) = rho Q^(p) W_R^(l,p)^T of each visible p, oldest first
  /// The same with centered_block(W_R^(l,p)): differs from Z_R^(p) by rho times a constant per expert and
  /// a shift of all logits.
  std::vector<at::Tensor> centered;
};

/// Which part of a predecessor's contribution is removed: all of it, or only the centered block's, which
/// keeps the layer's bias per expert.
enum class Contribution { kRaw, kCentered };

/// Branches of layer l, given the routing of all layers (l ascending). Does not need the router's input: Z_R
/// follows from rho and the earlier layers' probabilities, and Z_O = Z - Z_R.
Branches branches(const Transformer& model, const std::vector<Routing>& routings, int64_t l);

/// The experts [T, K] int64 that layer l selects for logits [T, E], with its score function, groups and
/// expert bias, without capacity.
at::Tensor selected_experts(const Transformer& model, int64_t l, const at::Tensor& logits_TE);

/// Sum over tokens of the fraction of `ids` [T, K] that is also in `others` [T, K].
double overlap(const at::Tensor& ids, const at::Tensor& others);

/// Sum over tokens of KL(softmax(z) || softmax(other)), nats.
double kl_divergence(const at::Tensor& z, const at::Tensor& other);

/// Means over tokens of one layer with M_l > 0.
struct HistoryUse {
  double variance_share = 0;              ///< Var(Z_R) / (Var(Z_O) + Var(Z_R)), see HistorySums
  double agreement = 0, agreement_1 = 0;  ///< selection from Z and from Z_O alone: top-k, top-1
  double history_only = 0, history_only_1 = 0, history_only_kl = 0;  ///< from Z_R; KL(Q || softmax(Z_R))
};

/// Effect of removing p's contribution from the logits of layer l, means over tokens, fp64 [L, L]; 0 if p is
/// not visible to l.
struct Removal {
  at::Tensor change_LL;  ///< fraction of the K selected experts that are no longer selected
  at::Tensor kl_LL;      ///< KL(Q || Q without p), nats
};

/// Accumulates the effect of the history in every layer over tokens.
class HistorySums {
 public:
  explicit HistorySums(const Transformer& model);

  /// Adds tokens, with the routing of all layers.
  void add(const std::vector<Routing>& routings);

  int64_t tokens() const { return tokens_; }
  /// Layer l must have M_l > 0. Variances are computed over experts and each averaged over tokens, like
  /// `history_variance_share` in metrics.jsonl.
  HistoryUse use(int64_t l) const;
  Removal removal(Contribution removed) const;

 private:
  struct Sums {
    double var_hidden = 0, var_history = 0, agreement = 0, agreement_1 = 0, history_only = 0,
           history_only_1 = 0, kl = 0;
  };
  void add_layer(const std::vector<Routing>& routings, int64_t l);
  void add_removal(Removal& removal, const std::vector<at::Tensor>& contributions, const at::Tensor& total,
                   const Routing& own);

  const Transformer* model_;
  int64_t tokens_ = 0;
  std::vector<Sums> sums_;
  Removal raw_, centered_;  // sums
};

/// The paper's eta_R (Proposition 5): the history's share of layer l's logit variance at initialization,
/// (l-1)E / (D + (l-1)E). 0 if M_l = 0 or `router.init` is zero; nullopt if `router.scale` is false,
/// because it then depends on the norm of the history.
std::optional<double> initial_variance_share(const Config& config, const HistoryLayout& layout, int64_t l);

}  // namespace hero
