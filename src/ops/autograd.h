#pragma once
// What code outside ops/ uses of PyTorch's autograd: declared here without its headers, which are slow to
// parse.
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace hero::ops {

/// torch.autograd.backward: adds the gradients of `outputs`, given theirs, to the graph's leaves. The
/// gradient of a scalar may be undefined and is then 1.
void backward(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients);

/// The gradients of the inputs (undefined: none) from the tensors that were saved and the gradients of the
/// outputs (zeros for outputs without one).
using Backward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& saved,
                                                       const std::vector<at::Tensor>& gradients)>;

/// `outputs`, computed from `inputs` without an autograd graph, as the outputs of a graph node that saves
/// `saved` and whose backward pass is `backward`. `backward` must not hold `outputs`, which would never be
/// released. Returns `outputs` unchanged if gradients are disabled.
std::vector<at::Tensor> with_backward(const std::vector<at::Tensor>& outputs, at::TensorList inputs,
                                      const std::vector<at::Tensor>& saved, const Backward& backward);

/// torch.Tensor.register_post_accumulate_grad_hook: calls `hook` whenever a backward pass has added to the
/// gradient of `leaf`. Replaces the previous hook; an empty one removes it.
void set_post_accumulate_grad_hook(const at::Tensor& leaf, std::function<void()> hook);

}  // namespace hero::ops
