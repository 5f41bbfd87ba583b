// Causal attention. Our fused CPU kernels and cuDNN on CUDA handle training shapes, with as many queries as
// keys, the CPU's also prompts in fp32; decoding, other types and other shapes use PyTorch's
// scaled_dot_product_attention. Its fused kernels require equal widths of q, k and v, so the narrower ones
// are zero-padded. Key and value heads are repeated for kernels without GQA support; FlashAttention on CUDA
// supports it. Documents are an explicit boolean mask there, which its memory-efficient and math kernels
// support.
#include "ops/cpu/attention.h"

#include <ATen/ATen.h>

#include "ops/differentiable.h"
#include "ops/ops.h"
#include "ops/reference.h"
#include "ops/registry.h"

namespace hero::ops {
namespace {

// [B, Hkv, S, P] -> [B, H, S, P] in the accumulation type.
at::Tensor repeated(const at::Tensor& x, int64_t groups) {
  return x.to(accumulation_type(x.scalar_type())).repeat_interleave(groups, 1);
}

// Whether query i attends to position j: starts[i] <= j <= i. [B, 1, S, S]
at::Tensor document_mask(const at::Tensor& starts) {
  const auto position = at::arange(starts.size(1), starts.options());
  const auto visible = position.unsqueeze(0) <= position.unsqueeze(1);
  return ((starts.unsqueeze(2) <= position) & visible).unsqueeze(1);
}

at::Tensor causal_scores(const at::Tensor& q, const at::Tensor& k, double scale,
                         const std::optional<at::Tensor>& starts) {
  const int64_t length = q.size(2), groups = q.size(1) / k.size(1);
  const auto scores = at::matmul(repeated(q, 1), repeated(k, groups).transpose(-1, -2)) * scale;
  const auto hidden = starts ? ~document_mask(*starts)
                             : at::ones({length, length}, scores.options().dtype(at::kBool)).triu(1);
  return scores.masked_fill(hidden, -INFINITY);
}

}  // namespace

bool attention_is_fused_reference(const at::Tensor&, const at::Tensor&, const at::Tensor&, double) {
  return false;
}

std::tuple<at::Tensor, at::Tensor> attention_forward_reference(const at::Tensor& q, const at::Tensor& k,
                                                               const at::Tensor& v, double scale,
                                                               const std::optional<at::Tensor>& starts) {
  const auto scores = causal_scores(q, k, scale, starts);
  const auto out = at::matmul(scores.softmax(-1), repeated(v, q.size(1) / v.size(1)));
  return {out.transpose(1, 2).to(q.scalar_type()).contiguous(), scores.logsumexp(-1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward_reference(
    const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& out, const at::Tensor& lse, double scale, const std::optional<at::Tensor>& starts) {
  const int64_t groups = q.size(1) / k.size(1);
  const auto wide_dout = repeated(dout.transpose(1, 2), 1), wide_out = repeated(out.transpose(1, 2), 1);
  const auto probs = (causal_scores(q, k, scale, starts) - lse.unsqueeze(-1)).exp();
  const auto dprobs = at::matmul(wide_dout, repeated(v, groups).transpose(-1, -2));
  const auto dscores = probs * (dprobs - (wide_dout * wide_out).sum(-1, true)) * scale;
  const auto shared = [&](const at::Tensor& t, const at::Tensor& like) {
    return t.unflatten(1, {k.size(1), groups}).sum(2).to(like.scalar_type());
  };
  return {at::matmul(dscores, repeated(k, groups)).to(q.scalar_type()),
          shared(at::matmul(dscores.transpose(-1, -2), repeated(q, 1)), k),
          shared(at::matmul(probs.transpose(-1, -2), wide_dout), v)};
}

namespace {

struct Attention : torch::autograd::Function<Attention> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, double scale, const std::optional<at::Tensor>& starts) {
    static const auto op = find_operator("hero::attention_forward", attention_forward_reference);
    auto [out, lse] = op.call(q, k, v, scale, starts);
    if (ctx) {
      ctx->save_for_backward({q, k, v, out, lse, starts.value_or(at::Tensor())});
      ctx->saved_data["scale"] = scale;
    }
    return out;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    static const auto op = find_operator("hero::attention_backward", attention_backward_reference);
    const auto saved = ctx->get_saved_variables();
    auto [dq, dk, dv] = op.call(grads[0].contiguous(), saved[0], saved[1], saved[2], saved[3], saved[4],
                                ctx->saved_data["scale"].toDouble(),
                                saved[5].defined() ? std::optional(saved[5]) : std::nullopt);
    return {dq, dk, dv, {}, {}};
  }
};

// PyTorch's attention, which requires values as wide as the keys.
at::Tensor library_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                             const std::optional<at::Tensor>& starts) {
  const int64_t queries = q.size(2), keys = k.size(2), groups = q.size(1) / k.size(1), width = v.size(3);
  const bool masked = starts || (queries > 1 && queries < keys);
  const bool flash = q.is_cuda() && !masked && at::isReducedFloatingType(q.scalar_type());
  const bool repeat = groups > 1 && !flash;
  auto keys_H = repeat ? k.repeat_interleave(groups, 1) : k;
  auto values_H = repeat ? v.repeat_interleave(groups, 1) : v;
  auto queries_H = q;
  if (width < q.size(3)) values_H = at::constant_pad_nd(values_H, {0, q.size(3) - width});
  if (width > q.size(3)) {
    queries_H = at::constant_pad_nd(queries_H, {0, width - q.size(3)});
    keys_H = at::constant_pad_nd(keys_H, {0, width - q.size(3)});
  }
  std::optional<at::Tensor> mask;
  if (masked) {
    mask = starts ? document_mask(*starts)
                  : at::ones({queries, keys}, q.options().dtype(at::kBool)).tril(keys - queries);
  }
  auto out =
      at::scaled_dot_product_attention(queries_H, keys_H, values_H, mask, 0.0, !masked && queries > 1, scale,
                                       /*enable_gqa=*/groups > 1 && flash);
  return width < q.size(3) ? out.slice(3, 0, width) : out;
}

bool is_fused(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
              const std::optional<at::Tensor>& starts) {
  if (q.is_cpu()) return cpu::supports_attention(q, k, v);
  static const auto op = find_operator("hero::attention_is_fused", attention_is_fused_reference);
  return !starts && op.call(q, k, v, scale);
}

// The fused kernels read memory at these positions.
void check_starts(const at::Tensor& starts) {
  const int64_t length = starts.size(1);
  const auto* values = starts.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < starts.numel(); ++i) {
    const int64_t position = i % length, before = position == 0 ? 0 : values[i - 1];
    TORCH_CHECK(before <= values[i] && values[i] <= position, "attention: starts[", i / length, "][",
                position, "] must be in [", before, ", ", position, "], got ", values[i]);
  }
}

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                     const at::Tensor& starts_BS) {
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && q.size(3) == k.size(3) &&
                  k.size(2) == v.size(2) && q.size(1) % k.size(1) == 0 && k.size(1) == v.size(1) &&
                  q.size(2) <= k.size(2),
              "attention: expected q [B, H, S, Q], k [B, Hkv, S', Q], v [B, Hkv, S', P], got ", q.sizes(),
              ", ", k.sizes(), ", ", v.sizes());
  std::optional<at::Tensor> starts;
  if (starts_BS.defined()) {
    TORCH_CHECK(starts_BS.scalar_type() == at::kLong && q.size(2) == k.size(2) &&
                    starts_BS.sizes() == at::IntArrayRef({q.size(0), q.size(2)}),
                "attention: with as many queries as keys, starts must be int64 [B, S] = [", q.size(0), ", ",
                q.size(2), "], got ", starts_BS.scalar_type(), " ", starts_BS.sizes(), " and ", k.size(2),
                " keys");
    starts = starts_BS.contiguous();
    if (q.is_cpu()) check_starts(*starts);
  }
  if (!is_fused(q, k, v, scale, starts)) return library_attention(q, k, v, scale, starts);
  return differentiable<Attention>(q, k, v, scale, starts).transpose(1, 2);
}

at::Tensor prefill_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale) {
  if (!q.is_cpu()) return library_attention(q, k, v, scale, std::nullopt);
  if (!cpu::supports_attention_fp32(q, k, v)) return attention(q, k, v, scale);
  static const auto op = find_operator("hero::attention_forward", attention_forward_reference);
  return std::get<0>(op.call(q, k, v, scale, std::nullopt)).transpose(1, 2);
}

}  // namespace hero::ops
