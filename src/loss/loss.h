#pragma once
// The training loss, computed from the model's outputs.
#include <optional>

#include "config/config.h"
#include "model/transformer.h"

namespace hero {

/// Fractions of the previous step's global batch assigned to each expert, [L, E], rows summing to 1; uniform
/// before the first step. Used as f_e by `router.balance = "global"`; saved in every checkpoint.
struct BalanceState {
  at::Tensor shares_LE;
  static BalanceState uniform(int64_t layers, int64_t experts, at::Device device = at::kCPU);
};

/// Scalars on the model's device. All but `total` are fp64, detached, and 0 if the term is disabled.
struct Losses {
  at::Tensor total;     ///< the training objective
  at::Tensor lm;        ///< mean cross-entropy per token, nats
  at::Tensor mtp;       ///< mean over modules of their cross-entropy per target, before its coefficient
  at::Tensor balance;   ///< mean over layers of E * sum_e f_e P_e (pooled: of all), before its coefficient
  at::Tensor z;         ///< mean over layers and tokens of logsumexp(Z)^2, before its coefficient
  at::Tensor coupling;  ///< R_cp (for a chunk: the pairs of its layers), before its coefficient
  at::Tensor mass_T;    ///< topk_mass of the last MoE layer so far, differentiable; for the next chunk's R_cp
};

/// Targets of the multi-token prediction modules, one entry per module.
struct ModuleTargets {
  std::vector<at::Tensor> targets_T = {};  ///< mtp_targets, int64 [T], -1 ignored
  std::vector<double> normalizers = {};    ///< as `normalizer` of compute_losses; empty: the default
};

/// Loss of one micro-batch, or a model chunk's contribution to it: its layers' auxiliary losses, and
/// cross-entropy if `is_last_chunk`. targets int64 [T], -1 ignored; T holds consecutive sequences of
/// `sequence` tokens. `total` sums balance and z losses over layers; R_cp is a mean over pairs of layers.
/// `mass_T`: Losses::mass_T of the previous chunk, if any. `normalizer`: divisor of the sum of the
/// cross-entropy; default: the targets that are not ignored. `modules`: for an output of training. `total` is
/// undefined if there is no contribution.
Losses compute_losses(const Transformer& model, const Transformer::Output& output,
                      const at::Tensor& targets_T, int64_t sequence, const BalanceState& balance,
                      bool is_last_chunk = true, const at::Tensor& mass_T = {},
                      std::optional<double> normalizer = {}, const ModuleTargets& modules = {});

/// E * sum_e f_e P_e of one layer (Switch Transformer, Eq. 4): P is the mean of the normalized scores over
/// tokens, f the fractions of assignments, summing to 1, of this micro-batch (kMicroBatch), of each sequence
/// separately (kSequence), or as given (kGlobal).
at::Tensor balance_loss(const at::Tensor& scores_TE, const at::Tensor& ids_TK, BalanceScope scope,
                        int64_t sequence, const at::Tensor& global_shares_E);

/// The balance loss of transformers: E * sum_e f_e P_e with f and P over the L*T tokens of all layers; the
/// fractions f sum to K.
at::Tensor pooled_balance_loss(const std::vector<at::Tensor>& scores_TE,
                               const std::vector<at::Tensor>& ids_TK);

/// Mean over tokens of logsumexp(Z)^2 (ST-MoE, Eq. 5).
at::Tensor z_loss(const at::Tensor& logits_TE);

/// [T]: sum of each token's K largest probabilities.
at::Tensor topk_mass(const at::Tensor& probs_TE, int64_t k);

/// R_cp (arXiv 2602.14159): minus the product of the top-k masses of adjacent MoE layers, averaged over
/// tokens and over the `pairs` of adjacent layers of the whole model, including pairs across router stages
/// and pipeline chunks. `masses_T`: of consecutive layers; a subset of the layers gives its contribution. The
/// gradient flows into both layers. Undefined for fewer than two layers.
at::Tensor coupling_loss(const std::vector<at::Tensor>& masses_T, int64_t pairs);

}  // namespace hero
