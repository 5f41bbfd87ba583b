#pragma once
// Muon (Jordan et al. 2024) with Nesterov momentum, its update scaled to the RMS of AdamW's (arXiv
// 2502.16982): torch.optim.Muon with adjust_lr_fn = "match_rms_adamw".
#include <ATen/core/Tensor.h>

#include <optional>

namespace hero {

struct MuonOptions {
  double lr, momentum, weight_decay;
};

/// One step on matrices [B, I, O] of one type, fp32 or fp64, with any strides. Updates values and momentum in
/// place and copies the values to `leaf` unless it is undefined. `scale` and `skip`: as ops::adamw_step.
void muon_step(const at::Tensor& values, const at::Tensor& gradient, const at::Tensor& momentum,
               const at::Tensor& leaf, const MuonOptions& options, const std::optional<at::Tensor>& scale,
               const std::optional<at::Tensor>& skip);

}  // namespace hero
