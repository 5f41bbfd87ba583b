#pragma once
// Serializes one layer's routing probabilities for another pipeline rank: all E of them, or the `top` largest
// with their expert ids; the receiver distributes the remaining mass evenly over the other experts.
#include <ATen/core/Tensor.h>

namespace hero {

/// Bytes per token. `top` = 0: all experts.
int64_t history_message_width(int64_t experts, int64_t top, at::ScalarType dtype);

/// Converts probs [T, E] of the history's type to uint8 [T, width].
at::Tensor pack_history(const at::Tensor& probs_TE, int64_t top);

/// Inverse of pack_history, [T, E]; bitwise equal if `top` is 0.
at::Tensor unpack_history(const at::Tensor& message, int64_t experts, int64_t top, at::ScalarType dtype);

}  // namespace hero
