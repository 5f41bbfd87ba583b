#pragma once
// Where two models part: their activations on the same tokens, place by place through the network.
#include <string>
#include <vector>

#include "model/transformer.h"

namespace hero {

/// One comparable place: "embedding", "layer 3 router" (its logits), "layer 3", "final norm", "logits".
struct Activation {
  std::string place;
  at::Tensor values;  ///< fp32 or fp64, one row a token
};

/// The places of one forward pass over `tokens`, in the order in which they are computed. Layers count from
/// 0, as on disk.
std::vector<Activation> activations(const Transformer& model, const std::vector<int64_t>& tokens);

/// Greatest |a - b| over the greatest |a|; infinite where the shapes differ or one holds NaN.
double relative_difference(const at::Tensor& a, const at::Tensor& b);

}  // namespace hero
