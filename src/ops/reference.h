#pragma once
// Reference implementation of every kernel, for any device and type. Fused kernels fall back to them for
// unsupported shapes and types, and tests compare fused kernels with them. Shapes as in ops.h.
#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace hero::ops {

at::Tensor linear_forward_reference(const at::Tensor& x, const at::Tensor& w);
at::Tensor linear_backward_input_reference(const at::Tensor& dy, const at::Tensor& w);
at::Tensor linear_backward_weight_reference(const at::Tensor& dy, const at::Tensor& x);

std::tuple<at::Tensor, at::Tensor> rms_norm_forward_reference(const at::Tensor& x, const at::Tensor& w,
                                                              double eps);
/// -> x + update, its norm, rstd
std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm_forward_reference(const at::Tensor& x,
                                                                              const at::Tensor& update,
                                                                              const at::Tensor& w,
                                                                              double eps);
/// -> dx, dw; dsum, an additional gradient of x, is added to dx before rounding.
std::tuple<at::Tensor, at::Tensor> rms_norm_backward_reference(const at::Tensor& dy, const at::Tensor& x,
                                                               const at::Tensor& w, const at::Tensor& rstd,
                                                               const std::optional<at::Tensor>& dsum);

at::Tensor rope_reference(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool interleave,
                          bool inverse);

/// x [B, S, H, R] -> y, rstd [B, S, H]
std::tuple<at::Tensor, at::Tensor> norm_rope_forward_reference(const at::Tensor& x, const at::Tensor& w,
                                                               double eps, const at::Tensor& cos,
                                                               const at::Tensor& sin);
std::tuple<at::Tensor, at::Tensor> norm_rope_backward_reference(const at::Tensor& dy, const at::Tensor& x,
                                                                const at::Tensor& w, const at::Tensor& rstd,
                                                                const at::Tensor& cos, const at::Tensor& sin);

/// -> q, k
std::tuple<at::Tensor, at::Tensor> latent_heads_forward_reference(const at::Tensor& queries,
                                                                  const at::Tensor& kv, const at::Tensor& key,
                                                                  const at::Tensor& cos,
                                                                  const at::Tensor& sin, bool interleave);
/// -> dqueries, dkv, dkey
std::tuple<at::Tensor, at::Tensor, at::Tensor> latent_heads_backward_reference(
    const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& cos,
    const at::Tensor& sin, bool interleave);

/// Whether the device has fused kernels for this shape, forward and backward; the references need S^2 memory.
bool attention_is_fused_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  double scale);
/// q [B, H, S, Q], k [B, Hkv, S, Q], v [B, Hkv, S, P], causal, within documents if `starts` [B, S] is given
/// -> out [B, S, H, P], logsumexp [B, H, S]
std::tuple<at::Tensor, at::Tensor> attention_forward_reference(const at::Tensor& q, const at::Tensor& k,
                                                               const at::Tensor& v, double scale,
                                                               const std::optional<at::Tensor>& starts);
/// dout [B, S, H, P] -> dq, dk, dv, shaped as q, k, v
std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward_reference(
    const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& out, const at::Tensor& lse, double scale, const std::optional<at::Tensor>& starts);

/// q [T, H, Q], keys[i] [>= S_i, Hkv, Q], values[i] [>= S_i, Hkv, >= P] -> [T, H, P]
at::Tensor cached_attention_reference(const at::Tensor& q, at::TensorList keys, at::TensorList values,
                                      at::IntArrayRef lengths, at::IntArrayRef counts, int64_t value_width,
                                      double scale);
/// x [T, H, I], w [H, O, I] or, transposed, [H, I, O] -> [T, H, O]
at::Tensor heads_linear_reference(const at::Tensor& x, const at::Tensor& w, bool transposed);

at::Tensor swiglu_forward_reference(const at::Tensor& gate_up);
at::Tensor swiglu_backward_reference(const at::Tensor& dy, const at::Tensor& gate_up);

/// -> logits, probs, stats
std::tuple<at::Tensor, at::Tensor, at::Tensor> route_forward_reference(
    const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& history,
    const std::optional<at::Tensor>& sumsq, double depth_factor, double eps, bool scale,
    const std::optional<at::Tensor>& slot, const std::optional<at::Tensor>& slot_sumsq);
/// -> dx, dz [1, T, E]: the gradient of the logits through both outputs; with history [2, T, E]: also rho
/// times it
std::tuple<at::Tensor, at::Tensor> route_backward_input_reference(
    const at::Tensor& dlogits, const at::Tensor& dprobs, const at::Tensor& probs, const at::Tensor& x,
    const at::Tensor& w, const std::optional<at::Tensor>& history, const at::Tensor& stats);
/// dz as above -> dw
at::Tensor route_backward_weight_reference(const at::Tensor& dz, const at::Tensor& x,
                                           const std::optional<at::Tensor>& history);

at::Tensor top_experts_reference(const at::Tensor& scores, const std::optional<at::Tensor>& bias, int64_t k,
                                 int64_t groups, int64_t kept_groups);
at::Tensor expert_weights_reference(const at::Tensor& scores, const at::Tensor& ids, bool normalize,
                                    double eps, double factor);
/// -> dscores [T, E]
at::Tensor expert_weights_backward_reference(const at::Tensor& dweights, const at::Tensor& scores,
                                             const at::Tensor& ids, bool normalize, double eps,
                                             double factor);

/// -> y, gate_up of every row (saved for backward)
std::tuple<at::Tensor, at::Tensor> experts_forward_reference(const at::Tensor& x, const at::Tensor& gate_up,
                                                             const at::Tensor& down,
                                                             const at::Tensor& offsets);
/// -> dx, dgate_up, ddown
std::tuple<at::Tensor, at::Tensor, at::Tensor> experts_backward_reference(
    const at::Tensor& dy, const at::Tensor& x, const at::Tensor& h, const at::Tensor& gate_up,
    const at::Tensor& down, const at::Tensor& offsets);
/// -> dx, dh [N, 2F], and swiglu of h [N, F]: the operands of the weight gradients
std::tuple<at::Tensor, at::Tensor, at::Tensor> experts_backward_input_reference(const at::Tensor& dy,
                                                                                const at::Tensor& h,
                                                                                const at::Tensor& gate_up,
                                                                                const at::Tensor& down,
                                                                                const at::Tensor& offsets);
/// dy [N, O], x [N, I] -> dw [E, O, I], dy^T x over the rows of each expert
at::Tensor experts_backward_weight_reference(const at::Tensor& dy, const at::Tensor& x,
                                             const at::Tensor& offsets);
/// grad [E, O, I] += dy^T x
void experts_add_backward_weight_reference(const at::Tensor& grad, const at::Tensor& dy, const at::Tensor& x,
                                           const at::Tensor& offsets);

/// -> counts, offsets, token, row
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> plan_reference(const at::Tensor& ids,
                                                                          int64_t experts);
at::Tensor gather_rows_reference(const at::Tensor& x, const at::Tensor& token);
/// y_T = base_T + sum_k weights_TK x[row_TK], weights default to 1, base to 0
at::Tensor sum_rows_reference(const at::Tensor& x, const std::optional<at::Tensor>& weights,
                              const at::Tensor& row, const std::optional<at::Tensor>& base);
/// -> dy_N, dweights_TK
std::tuple<at::Tensor, at::Tensor> combine_backward_reference(const at::Tensor& dy, const at::Tensor& y,
                                                              const at::Tensor& weights,
                                                              const at::Tensor& row, const at::Tensor& token);

/// -> loss, dx, dw (without rows if not needed)
std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy_reference(const at::Tensor& x,
                                                                              const at::Tensor& w,
                                                                              const at::Tensor& targets,
                                                                              bool needs_dx, bool needs_dw);

at::Tensor newton_schulz_reference(const at::Tensor& x);
at::Tensor sum_of_squares_reference(at::TensorList tensors);
void adamw_step_reference(at::TensorList values, at::TensorList gradients, at::TensorList exp_avg,
                          at::TensorList exp_avg_sq, at::TensorList leaves, const at::Tensor& step, double lr,
                          double beta1, double beta2, double weight_decay, double eps,
                          const std::optional<at::Tensor>& scale, const std::optional<at::Tensor>& skip);

}  // namespace hero::ops
