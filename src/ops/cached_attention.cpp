// Attention of new positions over KV caches, and per-head linear layers, which multi-head latent attention
// needs. Inference only: no gradients.
#include <ATen/ATen.h>

#include "ops/ops.h"
#include "ops/reference.h"
#include "ops/registry.h"

namespace hero::ops {

at::Tensor cached_attention_reference(const at::Tensor& q, at::TensorList keys, at::TensorList values,
                                      at::IntArrayRef lengths, at::IntArrayRef counts, int64_t value_width,
                                      double scale) {
  const auto acc = accumulation_type(q.scalar_type());
  std::vector<at::Tensor> outs;
  int64_t first = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const int64_t n = counts[i], positions = lengths[i], groups = q.size(1) / keys[i].size(1);
    const auto heads = [&](const at::Tensor& t, int64_t width) {  // -> [H, S, width]
      return t.slice(0, 0, positions).slice(2, 0, width).to(acc).transpose(0, 1).repeat_interleave(groups, 0);
    };
    const auto rows = q.slice(0, first, first + n).to(acc).transpose(0, 1);
    const auto future = at::ones({n, positions}, q.options().dtype(at::kBool)).triu(positions - n + 1);
    const auto scores =
        (at::matmul(rows, heads(keys[i], q.size(2)).transpose(1, 2)) * scale).masked_fill(future, -INFINITY);
    outs.push_back(
        at::matmul(scores.softmax(-1), heads(values[i], value_width)).transpose(0, 1).to(q.scalar_type()));
    first += n;
  }
  return at::cat(outs, 0);
}

at::Tensor heads_linear_reference(const at::Tensor& x, const at::Tensor& w, bool transposed) {
  const auto acc = accumulation_type(x.scalar_type());
  const auto weight = w.to(acc);
  return at::bmm(x.to(acc).transpose(0, 1), transposed ? weight : weight.transpose(1, 2))
      .transpose(0, 1)
      .to(x.scalar_type())
      .contiguous();
}

at::Tensor cached_attention(const at::Tensor& q_THQ, const CachedSequences& cached, double scale) {
  const auto& [keys, values, lengths, counts, value_width] = cached;
  TORCH_CHECK(
      q_THQ.dim() == 3 && !counts.empty() && keys.size() == counts.size() && values.size() == counts.size() &&
          lengths.size() == counts.size(),
      "cached_attention: expected q [T, H, Q] and keys, values, lengths and counts of as many sequences, "
      "got q ",
      q_THQ.sizes(), " and ", keys.size(), ", ", values.size(), ", ", lengths.size(), ", ", counts.size());
  int64_t rows = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    TORCH_CHECK(keys[i].dim() == 3 && values[i].dim() == 3 && keys[i].size(0) >= lengths[i] &&
                    values[i].size(0) >= lengths[i] && keys[i].size(1) == values[i].size(1) &&
                    keys[i].size(2) == q_THQ.size(2) && values[i].size(2) >= value_width &&
                    q_THQ.size(1) % keys[i].size(1) == 0 && counts[i] > 0 && counts[i] <= lengths[i],
                "cached_attention: expected keys [", lengths[i], " or more, Hkv, ", q_THQ.size(2),
                "], values [", lengths[i], " or more, Hkv, ", value_width, " or more], Hkv dividing ",
                q_THQ.size(1), " and 1 to ", lengths[i], " new positions, got ", keys[i].sizes(), ", ",
                values[i].sizes(), ", ", counts[i]);
    rows += counts[i];
  }
  TORCH_CHECK(rows == q_THQ.size(0), "cached_attention: counts must sum to T = ", q_THQ.size(0), ", got ",
              rows);
  static const auto op = find_operator("hero::cached_attention", cached_attention_reference);
  return op.call(q_THQ, keys, values, lengths, counts, value_width, scale);
}

at::Tensor heads_linear(const at::Tensor& x_THI, const at::Tensor& w, bool transposed) {
  TORCH_CHECK(x_THI.dim() == 3 && w.dim() == 3 && w.size(0) == x_THI.size(1) &&
                  w.size(transposed ? 1 : 2) == x_THI.size(2),
              "heads_linear: expected x [T, H, I] and w ", transposed ? "[H, I, O]" : "[H, O, I]", ", got ",
              x_THI.sizes(), " and ", w.sizes());
  static const auto op = find_operator("hero::heads_linear", heads_linear_reference);
  return op.call(x_THI, w, transposed);
}

}  // namespace hero::ops
