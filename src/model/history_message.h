#pragma once
// One layer's routing on its way to another pipeline rank, as bytes: all E probabilities, or the `top`
// largest with their experts, the rest of the mass to be spread evenly over the other experts.
#include <ATen/core/Tensor.h>

namespace hero {

/// Bytes per token. `top` 0: all.
int64_t history_message_width(int64_t experts, int64_t top, at::ScalarType dtype);

/// probs [T, E] in the history's type -> uint8 [T, width].
at::Tensor pack_history(const at::Tensor& probs_TE, int64_t top);

/// The reverse, [T, E]; without `top` bit-equal.
at::Tensor unpack_history(const at::Tensor& message, int64_t experts, int64_t top, at::ScalarType dtype);

}  // namespace hero
