#include "model/history_message.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace hero {
namespace {

constexpr auto kId = at::kShort;

}  // namespace

int64_t history_message_width(int64_t experts, int64_t top, at::ScalarType dtype) {
  const auto value = static_cast<int64_t>(c10::elementSize(dtype)),
             id = static_cast<int64_t>(c10::elementSize(kId));
  return top > 0 ? top * (value + id) : experts * value;
}

at::Tensor pack_history(const at::Tensor& probs_TE, int64_t top) {
  const at::NoGradGuard no_grad;
  if (top == 0) return probs_TE.contiguous().view(at::kByte);
  const auto [values, ids] = probs_TE.topk(top, -1);
  return at::cat({values.contiguous().view(at::kByte), ids.to(kId).view(at::kByte)}, 1);
}

at::Tensor unpack_history(const at::Tensor& message, int64_t experts, int64_t top, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  if (top == 0) return message.view(dtype);
  const int64_t bytes = top * static_cast<int64_t>(c10::elementSize(dtype));
  const auto values = message.slice(1, 0, bytes).contiguous().view(dtype);
  const auto ids = message.slice(1, bytes).contiguous().view(kId).to(at::kLong);
  const auto wide = values.to(dtype == at::kDouble ? at::kDouble : at::kFloat);
  const auto rest = (1 - wide.sum(1, true)).clamp_min(0) / static_cast<double>(experts - top);
  return rest.expand({rest.size(0), experts}).to(dtype).contiguous().scatter_(1, ids, values);
}

}  // namespace hero
