#pragma once
// Activations of a model, for finding where two models differ on the same tokens.
#include <string>
#include <vector>

#include "model/transformer.h"

namespace hero {

/// An activation at "embedding", "layer 3 router" (its logits), "layer 3", "final norm", "logits",
/// "module 1 router" or "module 1" (a multi-token prediction module, counted from 1).
struct Activation {
  std::string name;
  at::Tensor values;  ///< fp32 or fp64, one row per token
};

/// Activations of a forward pass over `tokens`, in order of computation. Layers count from 0, as on disk.
std::vector<Activation> activations(const Transformer& model, const std::vector<int64_t>& tokens);

/// max |a - b| / max |a|; infinite if the shapes differ or the difference is NaN.
double relative_difference(const at::Tensor& a, const at::Tensor& b);

}  // namespace hero
