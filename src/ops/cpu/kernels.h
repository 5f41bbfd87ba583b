#pragma once
// The CPU kernels that register.cpp registers, one per operator and of the same name. Arguments and results
// are those of the reference implementations (ops/reference.h), to which the kernels fall back for types and
// shapes that they do not support.
//
// These functions must keep external linkage and default visibility: libhero.so registers them through its
// global offset table, so a program that defines them takes their place (tests/ops/CMakeLists.txt).
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

namespace hero::cpu {

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& w);
at::Tensor linear_backward_input(const at::Tensor& dy, const at::Tensor& w);
at::Tensor linear_backward_weight(const at::Tensor& dy, const at::Tensor& x);

std::tuple<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& w, double eps);
std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm_forward(const at::Tensor& x,
                                                                    const at::Tensor& update,
                                                                    const at::Tensor& w, double eps);
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& dy, const at::Tensor& x,
                                                     const at::Tensor& w, const at::Tensor& rstd,
                                                     const std::optional<at::Tensor>& dsum);

at::Tensor rope_turn(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool interleave,
                     bool inverse);

std::tuple<at::Tensor, at::Tensor> norm_rope_forward(const at::Tensor& x, const at::Tensor& w, double eps,
                                                     const at::Tensor& cos, const at::Tensor& sin);
std::tuple<at::Tensor, at::Tensor> norm_rope_backward(const at::Tensor& dy, const at::Tensor& x,
                                                      const at::Tensor& w, const at::Tensor& rstd,
                                                      const at::Tensor& cos, const at::Tensor& sin);

std::tuple<at::Tensor, at::Tensor> attention_forward(const at::Tensor& q, const at::Tensor& k,
                                                     const at::Tensor& v, double scale,
                                                     const std::optional<at::Tensor>& starts);
std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(const at::Tensor& dout, const at::Tensor& q,
                                                                  const at::Tensor& k, const at::Tensor& v,
                                                                  const at::Tensor& out,
                                                                  const at::Tensor& lse, double scale,
                                                                  const std::optional<at::Tensor>& starts);

at::Tensor cached_attention(const at::Tensor& q, at::TensorList keys, at::TensorList values,
                            at::IntArrayRef lengths, at::IntArrayRef counts, int64_t value_width,
                            double scale);
at::Tensor heads_linear(const at::Tensor& x, const at::Tensor& w, bool transposed);

at::Tensor swiglu_forward(const at::Tensor& gate_up);
at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up);

std::tuple<at::Tensor, at::Tensor, at::Tensor> route_forward(const at::Tensor& x, const at::Tensor& w,
                                                             const std::optional<at::Tensor>& history,
                                                             const std::optional<at::Tensor>& sumsq,
                                                             double depth_factor, double eps, bool scale,
                                                             const std::optional<at::Tensor>& slot,
                                                             const std::optional<at::Tensor>& slot_sumsq);
std::tuple<at::Tensor, at::Tensor> route_backward_input(const at::Tensor& dlogits, const at::Tensor& dprobs,
                                                        const at::Tensor& probs, const at::Tensor& x,
                                                        const at::Tensor& w,
                                                        const std::optional<at::Tensor>& history,
                                                        const at::Tensor& stats);
at::Tensor route_backward_weight(const at::Tensor& dz, const at::Tensor& x,
                                 const std::optional<at::Tensor>& history);

at::Tensor top_experts(const at::Tensor& scores, const std::optional<at::Tensor>& bias, int64_t k,
                       int64_t groups, int64_t kept_groups);
at::Tensor expert_weights(const at::Tensor& scores, const at::Tensor& ids, bool normalize, double eps,
                          double factor);
at::Tensor expert_weights_backward(const at::Tensor& dweights, const at::Tensor& scores,
                                   const at::Tensor& ids, bool normalize, double eps, double factor);

at::Tensor count_assignments(const at::Tensor& ids, int64_t experts);
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> plan_assignments(const at::Tensor& ids,
                                                                            int64_t experts);
at::Tensor gather_rows(const at::Tensor& x, const at::Tensor& token);
at::Tensor sum_rows(const at::Tensor& x, const std::optional<at::Tensor>& weights, const at::Tensor& row,
                    const std::optional<at::Tensor>& base);
std::tuple<at::Tensor, at::Tensor> combine_backward(const at::Tensor& dy, const at::Tensor& y,
                                                    const at::Tensor& weights, const at::Tensor& row,
                                                    const at::Tensor& token);

std::tuple<at::Tensor, at::Tensor> experts_forward(const at::Tensor& x, const at::Tensor& gate_up,
                                                   const at::Tensor& down, const at::Tensor& offsets);
std::tuple<at::Tensor, at::Tensor, at::Tensor> experts_backward(const at::Tensor& dy, const at::Tensor& x,
                                                                const at::Tensor& h,
                                                                const at::Tensor& gate_up,
                                                                const at::Tensor& down,
                                                                const at::Tensor& offsets);
std::tuple<at::Tensor, at::Tensor, at::Tensor> experts_backward_input(const at::Tensor& dy,
                                                                      const at::Tensor& h,
                                                                      const at::Tensor& gate_up,
                                                                      const at::Tensor& down,
                                                                      const at::Tensor& offsets);
at::Tensor experts_backward_weight(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& offsets);

std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy_forward(const at::Tensor& x,
                                                                            const at::Tensor& w,
                                                                            const at::Tensor& targets,
                                                                            bool needs_dx, bool needs_dw);

at::Tensor newton_schulz(const at::Tensor& x);
at::Tensor sum_of_squares(at::TensorList tensors);
void adamw_step(at::TensorList values, at::TensorList gradients, at::TensorList exp_avg,
                at::TensorList exp_avg_sq, at::TensorList leaves, const at::Tensor& step, double lr,
                double beta1, double beta2, double weight_decay, double eps,
                const std::optional<at::Tensor>& scale, const std::optional<at::Tensor>& skip);

/// An operator and the function that is registered for it.
struct RegisteredKernel {
  const char* op;        ///< without the namespace `hero`
  const void* function;  ///< its address, to find the library or program that it belongs to (dladdr)
};

/// All registered kernels, in the order above.
const std::vector<RegisteredKernel>& registered_kernels();

}  // namespace hero::cpu
