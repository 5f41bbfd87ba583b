#pragma once
// The training loss, from values that the model returned.
#include "config/config.h"
#include "model/transformer.h"

namespace hero {

/// Expert shares of the previous step's whole global batch, [L, E] rows summing to 1; uniform before the
/// first step. What `router.balance = "global"` weighs the present probabilities with; part of every
/// checkpoint.
struct BalanceState {
  at::Tensor shares_LE;
  static BalanceState uniform(int64_t layers, int64_t experts, at::Device device = at::kCPU);
};

/// Scalars on the model's device; but for `total` fp64 without gradient, 0 where a term is switched off.
struct Losses {
  at::Tensor total;     ///< what is minimised
  at::Tensor lm;        ///< mean cross-entropy per token, nats
  at::Tensor balance;   ///< mean over layers of E * sum_e f_e P_e (pooled: of all), before its coefficient
  at::Tensor z;         ///< mean over layers and tokens of logsumexp(Z)^2, before its coefficient
  at::Tensor coupling;  ///< R_cp (of a chunk: its layers' part of it), before its coefficient
  at::Tensor mass_T;    ///< topk_mass of the last MoE layer so far, differentiable: for the next chunk's R_cp
};

/// Loss of one micro-batch, or what a chunk of the model adds to it: its layers' terms, and cross-entropy
/// where the model ends (`ends`). targets int64 [T], -1 ignored; sequences of `sequence` tokens follow one
/// another in T. Balance and z terms are summed over layers in `total`, as each layer's own loss; R_cp is a
/// mean over pairs of layers. `mass_T`: Losses::mass_T of the chunk before, where it has one. `total` is
/// undefined where nothing is added.
Losses compute_losses(const Transformer& model, const Transformer::Output& output,
                      const at::Tensor& targets_T, int64_t sequence, const BalanceState& balance,
                      bool ends = true, const at::Tensor& mass_T = {});

/// E * sum_e f_e P_e of one layer (Switch Transformer, Eq. 4): P the mean of the normalised scores over the
/// tokens, f the shares of assignments, summing to 1, of this micro-batch ("micro_batch"), of each sequence
/// by itself ("sequence"), or as given ("global").
at::Tensor balance_loss(const at::Tensor& scores_TE, const at::Tensor& ids_TK, const std::string& scope,
                        int64_t sequence, const at::Tensor& global_shares_E);

/// transformers' form: the tokens of all layers are one batch, and the shares sum to K:
/// E * sum_e f_e P_e with f and P over L*T rows.
at::Tensor pooled_balance_loss(const std::vector<at::Tensor>& scores_TE,
                               const std::vector<at::Tensor>& ids_TK);

/// Mean over tokens of logsumexp(Z)^2 (ST-MoE, Eq. 5).
at::Tensor z_loss(const at::Tensor& logits_TE);

/// [T]: what the K largest of each token's probabilities add up to.
at::Tensor topk_mass(const at::Tensor& probs_TE, int64_t k);

/// R_cp (arXiv 2602.14159): minus the product of the top-k masses of adjacent MoE layers, averaged over
/// tokens and over the `pairs` of adjacent layers of the whole model, whatever router stages and pipeline
/// boundaries lie between them. `masses_T`: of adjacent layers in order; fewer than all give their part of
/// the loss. Gradient flows into both layers. Undefined for fewer than two.
at::Tensor coupling_loss(const std::vector<at::Tensor>& masses_T, int64_t pairs);

}  // namespace hero
