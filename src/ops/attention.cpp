// Causal attention through the library's scaled_dot_product_attention. Its fused CPU kernel wants equal
// widths of q, k and v and equal numbers of heads, so narrower values are padded with zeros and shared heads
// repeated.
#include <ATen/ATen.h>

#include "ops/ops.h"

namespace hero::ops {

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale) {
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && q.size(3) == k.size(3) &&
                  k.size(2) == v.size(2) && q.size(1) % k.size(1) == 0 && k.size(1) == v.size(1) &&
                  q.size(2) <= k.size(2),
              "attention: expected q [B, H, S, Q], k [B, Hkv, S', Q], v [B, Hkv, S', P], got ", q.sizes(),
              ", ", k.sizes(), ", ", v.sizes());
  const int64_t queries = q.size(2), keys = k.size(2), groups = q.size(1) / k.size(1), width = v.size(3);
  auto keys_H = groups > 1 ? k.repeat_interleave(groups, 1) : k;
  auto values_H = groups > 1 ? v.repeat_interleave(groups, 1) : v;
  auto queries_H = q;
  if (width < q.size(3)) values_H = at::constant_pad_nd(values_H, {0, q.size(3) - width});
  if (width > q.size(3)) {
    queries_H = at::constant_pad_nd(queries_H, {0, width - q.size(3)});
    keys_H = at::constant_pad_nd(keys_H, {0, width - q.size(3)});
  }
  std::optional<at::Tensor> mask;
  if (queries > 1 && queries < keys) {
    mask = at::ones({queries, keys}, q.options().dtype(at::kBool)).tril(keys - queries);
  }
  auto out = at::scaled_dot_product_attention(queries_H, keys_H, values_H, mask, 0.0,
                                              queries > 1 && queries == keys, scale);
  return width < q.size(3) ? out.slice(3, 0, width) : out;
}

}  // namespace hero::ops
