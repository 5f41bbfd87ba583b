#pragma once
// The operators of route_list.cpp, for any device and type. Shapes as in ops.h.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

namespace hero::ops {

/// -> logits, probs, the sums of squares [T] of the rounded probs, stats
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> route_list_forward(
    const at::Tensor& x, const at::Tensor& w, at::TensorList history, at::TensorList sumsq,
    double depth_factor, double eps, bool scale);
/// -> dx, dw
std::tuple<at::Tensor, at::Tensor> route_list_backward(const at::Tensor& dlogits, const at::Tensor& dprobs,
                                                       const at::Tensor& probs, const at::Tensor& x,
                                                       const at::Tensor& w, at::TensorList history,
                                                       const at::Tensor& stats);

/// -> history branch of the logits [T, E], rho [T]
std::tuple<at::Tensor, at::Tensor> history_logits_forward(const at::Tensor& x, const at::Tensor& w,
                                                          at::TensorList history, at::TensorList sumsq,
                                                          double depth_factor, double eps, bool scale);
/// dz [T, E] -> dw [E, M*E]
at::Tensor history_logits_backward(const at::Tensor& dz, const at::Tensor& rho, at::TensorList history);

}  // namespace hero::ops
