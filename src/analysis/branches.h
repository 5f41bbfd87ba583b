#pragma once
// A routed token's logits taken apart, Z = Z_O + sum_p Z_R^(p), and what each part does to the choice.
#include "model/transformer.h"

namespace hero {

/// The rows `tokens` (int64) of every layer's routing; `assigned` and `counts` as they were.
std::vector<Routing> rows_of(const std::vector<Routing>& routings, const at::Tensor& tokens);

/// One layer's logits in their parts, fp64.
struct Branches {
  at::Tensor total;                      ///< Z [T, E], as the router made it
  at::Tensor hidden;                     ///< Z_O = Z - Z_R
  at::Tensor history;                    ///< Z_R; undefined where M_l = 0
  std::vector<at::Tensor> predecessors;  ///< Z_R^(p) = rho Q^(p) W_R^(l,p)^T of every visible p, oldest first
  /// The same with centered_block(W_R^(l,p)): each differs from Z_R^(p) by rho times a constant of each
  /// expert and by a shift of all logits.
  std::vector<at::Tensor> centered;
};

/// Which part of a predecessor's contribution is removed: all of it, or the part of the centered block, so
/// that the layer keeps its bias of each expert.
enum class Contribution { kRaw, kCentered };

/// Those of layer l, from what the model's layers (all of them, l ascending) made of some tokens. The
/// router's input is not needed: rho and the earlier layers' probabilities give Z_R, and what is left is Z_O.
Branches branches(const Transformer& model, const std::vector<Routing>& routings, int64_t l);

/// The experts [T, K] int64 that layer l's sparse policy chooses for logits [T, E]: its scores, groups and
/// balance bias; capacity left out.
at::Tensor chosen_experts(const Transformer& model, int64_t l, const at::Tensor& logits_TE);

/// Sum over tokens of the part of `ids` [T, K] that is also in `others` [T, K].
double shared_part(const at::Tensor& ids, const at::Tensor& others);

/// Sum over tokens of KL(softmax(z) || softmax(other)), nats.
double divergence(const at::Tensor& z, const at::Tensor& other);

/// Means over tokens of one layer with M_l > 0.
struct HistoryUse {
  double variance_share = 0;                    ///< Var(Z_R) / (Var(Z_O) + Var(Z_R)), see HistorySums
  double agreement = 0, agreement_1 = 0;        ///< choice from Z against Z_O alone: top K, likeliest
  double alone = 0, alone_1 = 0, alone_kl = 0;  ///< against Z_R alone; KL(Q || softmax(Z_R))
};

/// Effect of removing p's contribution from the logits of layer l, means over tokens, fp64 [L, L]; 0 where l
/// does not see p.
struct Removal {
  at::Tensor change_LL;  ///< part of the K chosen experts that are no longer chosen
  at::Tensor kl_LL;      ///< KL(Q || Q without p), nats
};

/// Sums over tokens of what the history does in every layer.
class HistorySums {
 public:
  explicit HistorySums(const Transformer& model);

  /// Adds tokens, with the routing of all layers.
  void add(const std::vector<Routing>& routings);

  int64_t tokens() const { return tokens_; }
  /// Of layer l with M_l > 0. Variances are taken over experts, then averaged over tokens each for itself,
  /// as `history_variance_share` in metrics.jsonl.
  HistoryUse use(int64_t l) const;
  Removal removal(Contribution removed) const;

 private:
  struct Sums {
    double var_hidden = 0, var_history = 0, agreement = 0, agreement_1 = 0, alone = 0, alone_1 = 0, kl = 0;
  };
  void add_layer(const std::vector<Routing>& routings, int64_t l);
  void add_removal(Removal& removal, const std::vector<at::Tensor>& contributions, const at::Tensor& total,
                   const Routing& own);

  const Transformer* model_;
  int64_t tokens_ = 0;
  std::vector<Sums> sums_;
  Removal raw_, centered_;  // sums
};

/// The paper's eta_R (Proposition 5): the history's share of layer l's logit variance at initialisation,
/// (l-1)E / (D + (l-1)E). 0 where M_l = 0 or `router.init` is "zero"; none where `router.scale` is false:
/// there it depends on the size of the history.
std::optional<double> initial_variance_share(const Config& config, const HistoryLayout& layout, int64_t l);

}  // namespace hero
