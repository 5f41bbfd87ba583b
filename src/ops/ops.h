#pragma once
// All operators that model code calls. Each is implemented in <op>.cpp (checks, autograd, reference
// implementation), its fused kernels in cpu/<op>.cpp and cuda/<op>.cu. The CUDA kernels never synchronize
// with the host, so a step can be captured in a CUDA graph; fp64 uses the reference implementations on CUDA,
// which may synchronize.
//
// Shape suffixes used throughout the project:
//   B batch, S sequence, T tokens (B*S), D hidden size, H heads, E experts, K experts per token, N routed
//   rows (<= T*K), F expert hidden size, V vocabulary, L MoE layers, M visible layers of one router, I/O
//   input/output features.
//
// Every operator returns weight gradients in fp32 (fp64 for fp64 weights), whatever the weight's type: a bf16
// leaf whose grad_dtype is fp32 accumulates micro-batches without rounding.
#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>
#include <vector>

#include "ops/route_stats.h"

namespace hero::ops {

/// y_TO = x_TI w_OI^T. Leading dimensions of x are kept.
at::Tensor linear(const at::Tensor& x, const at::Tensor& w_OI);

/// Rows of w_VD; ids int64 of any shape, each in [0, V).
at::Tensor embedding(const at::Tensor& ids, const at::Tensor& w_VD);

/// x / sqrt(mean(x^2) + eps) * w over the last dimension; the mean in fp32 (arXiv 1910.07467).
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& w_D, double eps);

/// x + update, rounded to x's type, and its rms_norm; if update is undefined, x itself and its rms_norm. One
/// fused pass forward and one backward, which adds the gradients of both outputs.
struct AddRmsNormOutput {
  at::Tensor sum, normed;
};
AddRmsNormOutput add_rms_norm(const at::Tensor& x, const at::Tensor& update, const at::Tensor& w_D,
                              double eps);

/// Rotary embedding (arXiv 2104.09864) of the last dimension R of x [B, S, H, R] by the angles whose cosines
/// and sines are cos/sin [S, R/2] fp32. `interleave`: pairs (2i, 2i+1); else (i, i + R/2).
at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool interleave);

/// rms_norm of every head of x [B, S, H, R], then rope (not interleaved), without rounding in between.
at::Tensor norm_rope(const at::Tensor& x, const at::Tensor& w_R, double eps, const at::Tensor& cos,
                     const at::Tensor& sin);

/// Heads of multi-head latent attention from queries [B, S, H, N+R], kv [B, S, H, N+P] and key [B, S, R].
struct LatentHeads {
  at::Tensor q;  ///< [B, S, H, N+R]: the queries, their last R elements rotated as by rope
  at::Tensor k;  ///< [B, S, H, N+R]: the first N elements of every head of kv, then the rotated key
  at::Tensor v;  ///< [B, S, H, P]: the rest of kv, a view
};
/// cos/sin [S, R/2], or [B*S, R/2] for positions that differ between the sequences.
LatentHeads latent_heads(const at::Tensor& queries, const at::Tensor& kv, const at::Tensor& key,
                         const at::Tensor& cos, const at::Tensor& sin, bool interleave);

/// silu(g) * u for g, u the two halves of the last dimension.
at::Tensor swiglu(const at::Tensor& gate_up);

/// Causal attention of q [B, H, S, Q], k [B, Hkv, S', Q], v [B, Hkv, S', P], Hkv dividing H; softmax of q k^T
/// * scale. Queries are the last S of the S' positions. With `starts` [B, S] int64 (then S = S'), query i
/// attends only to positions from starts[i] on: the first of its document, 0 <= starts[i] <= i,
/// nondecreasing. Returns [B, H, S, P].
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                     const at::Tensor& starts_BS = {});

/// The same for a prompt, without gradients: in fp32 on a CPU with a kernel that has no backward pass, on a
/// GPU with kernels that need no plan for every length.
at::Tensor prefill_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale);

/// KV caches of several sequences: sequence i occupies the first lengths[i] = S_i rows of keys[i] [., Hkv, Q]
/// and the first value_width = P columns of values[i] [., Hkv, .]; its last counts[i] positions are new.
struct CachedSequences {
  std::vector<at::Tensor> keys, values;
  std::vector<int64_t> lengths, counts;
  int64_t value_width = 0;
};

/// Attention of the new positions over the caches; no gradient. q [T, H, Q]: counts[i] rows of sequence i,
/// sequences concatenated. Row r of a sequence attends to its first S_i - counts[i] + r + 1 positions;
/// softmax of q k^T * scale. Returns [T, H, P].
at::Tensor cached_attention(const at::Tensor& q_THQ, const CachedSequences& cached, double scale);

/// y [T, H, O] = x [T, H, I] times the weight of each head, w [H, O, I] or, if `transposed`, [H, I, O]; no
/// gradient.
at::Tensor heads_linear(const at::Tensor& x_THI, const at::Tensor& w, bool transposed);

/// Input of a router with history: the detached probabilities of its M visible layers and their sums of
/// squares.
struct VisibleHistory {
  at::Tensor probs;           ///< [T, M*E], a column range of the micro-batch's buffer
  at::Tensor sumsq;           ///< [T, M] fp32: per layer, sum over experts of the stored probability squared
  double depth_factor = 1.0;  ///< sqrt((l-1)/M)
  double eps = 1e-6;
  bool scale = true;  ///< false: rho = 1
};

/// Where a router stores its own probabilities for later layers; undefined tensors if no layer reads them.
struct HistorySlot {
  at::Tensor probs;  ///< [T, E], a column range of the buffer
  at::Tensor sumsq;  ///< [T]
};

struct RouteOutput {
  at::Tensor logits;  ///< [T, E] fp32 (fp64 for fp64 input), differentiable
  at::Tensor probs;   ///< softmax of the logits, differentiable
  at::Tensor stats;   ///< [T, kRouteStats] in the logits' type, no gradient; columns: RouteStat
};

/// Router logits Z = x W_O^T + (rho * H) W_R^T with W = [W_O | W_R] [E, D + M*E] and, per token without
/// gradient, rho = RMS(x) / (RMS(H) + eps) * sqrt((l-1)/M); without history Z = x W_O^T. H gets no gradient
/// (StopGrad). Writes softmax(Z) and its sum of squares into `slot`; recomputation writes identical values.
RouteOutput route(const at::Tensor& x_TD, const at::Tensor& w, const std::optional<VisibleHistory>& history,
                  const HistorySlot& slot);

/// The same with the history as differentiable tensors [T, E], oldest first: gradients flow into them and
/// through rho (`router.detach = false`). Uses PyTorch operators only.
RouteOutput route_through(const at::Tensor& x_TD, const at::Tensor& w, const std::vector<at::Tensor>& history,
                          double depth_factor, double eps, bool scale);

/// The weight w in fp32 (fp64 for fp64), for PyTorch's operators: its gradient is not rounded to w's type.
at::Tensor widened(const at::Tensor& w);

/// x rounded to the precision of `type`, in x's own type; the gradient is passed on without rounding.
at::Tensor round_straight_through(const at::Tensor& x, at::ScalarType type);

/// `route` as a pure function, for callers without a history buffer: the history is a list, oldest first, of
/// tensors [T, E] with their sums of squares [T]. Entries that are adjacent column ranges of one buffer are
/// read in place, others are concatenated once per pass. Returns logits and probs as `route` does, and the
/// sums of squares [T] of probs rounded to x's type, which callers store.
std::tuple<at::Tensor, at::Tensor, at::Tensor> route_list(const at::Tensor& x_TD, const at::Tensor& w,
                                                          at::TensorList history, at::TensorList sumsq,
                                                          double depth_factor, double eps, bool scale);

/// Only the history branch of the logits, (rho * H) W_R^T [T, E] fp32, for models that compute the
/// hidden-state branch themselves. w_R is [E, M*E]; only w_R gets a gradient.
at::Tensor history_logits(const at::Tensor& x_TD, const at::Tensor& w_R, at::TensorList history,
                          at::TensorList sumsq, double depth_factor, double eps, bool scale);

/// The top K experts of every token by scores + bias, best first, int64 [T, K]; ties go to the lower index.
/// bias [E] may be undefined. With several groups (of E / groups adjacent experts each), only experts in the
/// kept_groups with the largest sums of their two best scores are eligible (DeepSeek-V3). No gradient; scores
/// fp32 or fp64.
at::Tensor top_experts(const at::Tensor& scores_TE, const at::Tensor& bias_E, int64_t k, int64_t groups,
                       int64_t kept_groups);

/// w = s * factor, or with `normalize` s / (sum_k s + eps) * factor, for the scores s [T, K] of `ids`; ids
/// must be unique per token.
at::Tensor expert_weights(const at::Tensor& scores_TE, const at::Tensor& ids_TK, bool normalize, double eps,
                          double factor);

/// Row of each kept assignment: rows are sorted by expert, then by token. On CUDA the host does not know how
/// many assignments were dropped, so N = T*K and rows from offsets[E] on are padding: their token is 0,
/// permute copies that token's row into them, experts returns zeros for them forward and backward, combine
/// skips them and returns zero gradients for them, and no reduction includes them.
struct Plan {
  at::Tensor counts;   ///< [E] int64, rows of each expert
  at::Tensor offsets;  ///< [E+1] int64, first row of each expert; the last is the number of rows
  at::Tensor token;    ///< [N] int64, the token of a row
  at::Tensor row;      ///< [T, K] int64, the row of an assignment, -1 if it was dropped
};

/// ids_TK int64 in [0, E), -1 for an assignment dropped by capacity.
Plan plan(const at::Tensor& ids_TK, int64_t experts);

/// x_TD -> x_ND in the plan's order.
at::Tensor permute(const at::Tensor& x_TD, const Plan& plan);

/// y_ND = (silu(x G_e^T) * (x U_e^T)) D_e^T for each row's expert e; gate_up [E, 2F, D] (gate first), down
/// [E, D, F].
at::Tensor experts(const at::Tensor& x_ND, const at::Tensor& gate_up, const at::Tensor& down,
                   const Plan& plan);

/// y_TD = base_TD + sum_k weights_TK y_ND[row], rounded once; dropped assignments contribute zero. weights
/// fp32; an undefined base means zeros.
at::Tensor combine(const at::Tensor& y_ND, const at::Tensor& weights_TK, const Plan& plan,
                   const at::Tensor& base_TD = {});

/// Sum over tokens of -log softmax(x w^T)[target] in fp32, in chunks of tokens, so the full fp32 logits are
/// never materialized. targets int64 [T], -1 is ignored. Returns a scalar; gradients w.r.t. x and w are
/// computed in the same pass.
at::Tensor linear_cross_entropy(const at::Tensor& x_TD, const at::Tensor& w_VD, const at::Tensor& targets_T);

/// Sum of squares over all elements of `tensors`: an fp64 scalar on their device, accumulated from fp32
/// partial sums (fp64 for fp64). At least one tensor.
at::Tensor sum_of_squares(at::TensorList tensors);

/// Muon's approximation of U V^T for each matrix U S V^T of x [B, I, O]: five Newton-Schulz iterations
/// (Jordan et al. 2024), in bf16 as in torch.optim.Muon, in fp64 for fp64 x. Returns [B, I, O] in that type;
/// a matrix of zeros stays zero. No gradient.
at::Tensor newton_schulz(const at::Tensor& x);

struct AdamWOptions {
  double lr, beta1, beta2, weight_decay, eps;
};

/// One step of AdamW (arXiv 1711.05101) on flat tensors of one type, fp32 or fp64. Updates values (master
/// weights), first and second moments in place, and `leaves`, the values in the operators' type; a leaf may
/// be the same tensor as its values. `step`, from 1, is an fp32 scalar on their device. `scale` (fp64 scalar)
/// multiplies every gradient. `skip` (fp32 scalar on a GPU): if 1, nothing is updated.
void adamw_step(at::TensorList values, at::TensorList gradients, at::TensorList exp_avg,
                at::TensorList exp_avg_sq, at::TensorList leaves, const at::Tensor& step,
                const AdamWOptions& rates, const std::optional<at::Tensor>& scale,
                const std::optional<at::Tensor>& skip);

}  // namespace hero::ops
