// Optimizer operators over all parameters. The reference implementations are PyTorch's foreach and fused
// kernels.
#include <ATen/ATen.h>

#include "ops/ops.h"
#include "ops/reference.h"
#include "ops/registry.h"

namespace hero::ops {

at::Tensor sum_of_squares_reference(at::TensorList tensors) {
  return at::stack(at::_foreach_norm(tensors, 2)).to(at::kDouble).square().sum();
}

void adamw_step_reference(at::TensorList values, at::TensorList gradients, at::TensorList exp_avg,
                          at::TensorList exp_avg_sq, at::TensorList leaves, const at::Tensor& step, double lr,
                          double beta1, double beta2, double weight_decay, double eps,
                          const std::optional<at::Tensor>& scale, const std::optional<at::Tensor>& skip) {
  const std::vector<at::Tensor> steps(values.size(), step);
  // The fused kernel would overwrite the gradients with the scaled ones.
  std::vector<at::Tensor> scaled;
  if (scale) scaled = at::_foreach_mul(gradients, *scale);
  at::_fused_adamw_(values, scale ? at::TensorList(scaled) : gradients, exp_avg, exp_avg_sq,
                    /*max_exp_avg_sqs=*/{}, steps, lr, beta1, beta2, weight_decay, eps, /*amsgrad=*/false,
                    /*maximize=*/false, /*grad_scale=*/{}, skip);
  std::vector<at::Tensor> to, from;
  for (size_t i = 0; i < values.size(); ++i) {
    if (leaves[i].is_same(values[i])) continue;
    to.push_back(leaves[i]);
    from.push_back(values[i]);
  }
  if (!to.empty()) at::_foreach_copy_(to, from);
}

at::Tensor sum_of_squares(at::TensorList tensors) {
  static const auto op = find_operator("hero::sum_of_squares", sum_of_squares_reference);
  return op.call(tensors);
}

void adamw_step(at::TensorList values, at::TensorList gradients, at::TensorList exp_avg,
                at::TensorList exp_avg_sq, at::TensorList leaves, const at::Tensor& step,
                const AdamWOptions& options, const std::optional<at::Tensor>& scale,
                const std::optional<at::Tensor>& skip) {
  static const auto op = find_operator("hero::adamw_step", adamw_step_reference);
  if (values.empty()) return;
  op.call(values, gradients, exp_avg, exp_avg_sq, leaves, step, options.lr, options.beta1, options.beta2,
          options.weight_decay, options.eps, scale, skip);
}

}  // namespace hero::ops
