#include "model/attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "ops/ops.h"

namespace hero {
namespace {

constexpr double kLatentEps = 1e-6;  // of the latent norms; DeepSeek-V3 does not use rms_norm_eps for them

constexpr int64_t kQueryBlock = 256;  // rows of the logits at a time, which bounds their memory

// Raises options.max_logit to the largest of the visible logits q k^T * scale of q, k [B, S, H, Q]. Separate
// from the attention operators, whose kernels do not keep the logits.
void raise_to_max_logit(const AttentionOptions& options, const at::Tensor& q, const at::Tensor& k,
                        double scale) {
  const at::NoGradGuard no_grad;
  const int64_t length = q.size(1), groups = q.size(2) / k.size(2);
  const auto wide = [](const at::Tensor& x) {
    return x.detach().to(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat).transpose(1, 2);
  };
  const auto queries = wide(q), keys = wide(k).repeat_interleave(groups, 1).transpose(2, 3);
  for (int64_t first = 0; first < length; first += kQueryBlock) {
    const int64_t rows = std::min(kQueryBlock, length - first), visible = first + rows;
    const auto logits = at::matmul(queries.narrow(2, first, rows), keys.narrow(3, 0, visible));
    auto hidden = at::ones({rows, visible}, logits.options().dtype(at::kBool)).triu(first + 1);
    if (options.starts_BS.defined()) {
      const auto starts = options.starts_BS.narrow(1, first, rows).unsqueeze(2);
      hidden = (hidden | (at::arange(visible, starts.options()) < starts)).unsqueeze(1);
    }
    const auto largest = logits.masked_fill(hidden, -INFINITY).max() * scale;
    options.max_logit.copy_(at::maximum(options.max_logit, largest.to(at::kDouble)));
  }
}

// Attention within each sequence: q, k [B, S, H, Q], v [B, S, H, P] -> [B*S, H*P]. With an extension B = 1
// and S holds its sequences, concatenated.
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                  const Extension* extension, const AttentionOptions& options) {
  if (options.max_logit.defined()) raise_to_max_logit(options, q, k, scale);
  const auto attend_rows = [&](const at::Tensor& q_rows, const at::Tensor& k_rows, const at::Tensor& v_rows) {
    const auto queries = q_rows.transpose(1, 2), keys = k_rows.transpose(1, 2),
               values = v_rows.transpose(1, 2);
    const auto rows = extension ? ops::prefill_attention(queries, keys, values, scale)
                                : ops::attention(queries, keys, values, scale, options.starts_BS);
    return rows.transpose(1, 2).reshape({q_rows.size(0) * q_rows.size(1), -1});
  };
  if (!extension || extension->counts.size() == 1) return attend_rows(q, k, v);
  const auto of_sequences = [&](const at::Tensor& x) { return x.split_with_sizes(extension->counts, 1); };
  const auto queries = of_sequences(q), keys = of_sequences(k), values = of_sequences(v);
  std::vector<at::Tensor> outs;
  for (size_t i = 0; i < queries.size(); ++i) outs.push_back(attend_rows(queries[i], keys[i], values[i]));
  return at::cat(outs, 0);
}

// rotate(x) for x [B, S, H, R]. With positions per token, B and S become one dimension, as in the table.
template <typename Rotate>
at::Tensor rotated(const at::Tensor& x, const RotaryTable& rotary, const Rotate& rotate) {
  if (rotary.cos.size(0) == x.size(1)) return rotate(x);
  return rotate(x.flatten(0, 1).unsqueeze(0)).view(x.sizes());
}

}  // namespace

GroupedQueryAttention::GroupedQueryAttention(Parameters& parameters, const std::string& prefix,
                                             const ModelConfig& model)
    : model_(model) {
  const int64_t d = model.hidden_size, q = model.num_attention_heads * model.head_dim,
                kv = model.num_key_value_heads * model.head_dim;
  const auto init = normal_init(model.initializer_range);
  qkv_ = parameters.add(prefix + ".qkv_proj.weight", {q + 2 * kv, d},
                        {{prefix + ".q_proj.weight", {q, d}, init},
                         {prefix + ".k_proj.weight", {kv, d}, init},
                         {prefix + ".v_proj.weight", {kv, d}, init}},
                        /*decay=*/true);
  out_ = parameters.add(prefix + ".o_proj.weight", {d, q}, init, true);
  if (model.type().qk_norm == QkNorm::kNone) return;
  const bool per_head = model.type().qk_norm == QkNorm::kHead;
  q_norm_ =
      parameters.add(prefix + ".q_norm.weight", {per_head ? model.head_dim : q}, constant_init(1), false);
  k_norm_ =
      parameters.add(prefix + ".k_norm.weight", {per_head ? model.head_dim : kv}, constant_init(1), false);
}

at::Tensor GroupedQueryAttention::operator()(const at::Tensor& x_TD, int64_t batch, const RotaryTable& rotary,
                                             const Extension* extension,
                                             const AttentionOptions& options) const {
  const int64_t s = x_TD.size(0) / batch, h = model_.num_attention_heads, g = model_.num_key_value_heads,
                p = model_.head_dim;
  const auto heads = ops::linear(x_TD, qkv_).view({batch, s, h + 2 * g, p});
  const auto parts = heads.split_with_sizes({h, g, g}, 2);
  const double scale = 1.0 / std::sqrt(static_cast<double>(p));
  const auto norm_rope = [&](const at::Tensor& part, const at::Tensor& weight) {
    if (model_.type().qk_norm == QkNorm::kHead) {
      return rotated(part, rotary, [&](const at::Tensor& t) {
        return ops::norm_rope(t, weight, model_.rms_norm_eps, rotary.cos, rotary.sin);
      });
    }
    auto normed = part;
    if (weight.defined())
      normed = ops::rms_norm(part.flatten(2), weight, model_.rms_norm_eps).view(part.sizes());
    return rotated(normed, rotary, [&](const at::Tensor& t) {
      return ops::rope(t, rotary.cos, rotary.sin, /*interleave=*/false);
    });
  };
  const auto q = norm_rope(parts[0], q_norm_), k = norm_rope(parts[1], k_norm_);
  const auto& v = parts[2];
  if (extension) {
    const ops::CachedSequences cached{.keys = extension->append(k[0], &LayerCache::keys),
                                      .values = extension->append(v[0], &LayerCache::values),
                                      .lengths = extension->lengths,
                                      .counts = extension->counts,
                                      .value_width = p};
    if (!extension->prefill) {
      const auto out = ops::cached_attention(q[0], cached, scale);
      return ops::linear(out.view({s, h * p}), out_);
    }
  }
  return ops::linear(attend(q, k, v, scale, extension, options), out_);
}

LatentAttention::LatentAttention(Parameters& parameters, const std::string& prefix, const ModelConfig& model)
    : model_(model) {
  const int64_t d = model.hidden_size, h = model.num_attention_heads, q_rank = model.q_lora_rank,
                kv_rank = model.kv_lora_rank, q = h * (model.qk_nope_head_dim + model.qk_rope_head_dim);
  const auto init = normal_init(model.initializer_range), ones = constant_init(1);
  const ParameterPart queries = q_rank ? ParameterPart{prefix + ".q_a_proj.weight", {q_rank, d}, init}
                                       : ParameterPart{prefix + ".q_proj.weight", {q, d}, init};
  const int64_t latent = kv_rank + model.qk_rope_head_dim;
  down_ =
      parameters.add(prefix + ".qkv_a_proj.weight", {queries.shape[0] + latent, d},
                     {queries, {prefix + ".kv_a_proj_with_mqa.weight", {latent, d}, init}}, /*decay=*/true);
  if (q_rank) {
    q_norm_ = parameters.add(prefix + ".q_a_layernorm.weight", {q_rank}, ones, false);
    q_up_ = parameters.add(prefix + ".q_b_proj.weight", {q, q_rank}, init, true);
  }
  kv_norm_ = parameters.add(prefix + ".kv_a_layernorm.weight", {kv_rank}, ones, false);
  kv_up_ = parameters.add(prefix + ".kv_b_proj.weight",
                          {h * (model.qk_nope_head_dim + model.v_head_dim), kv_rank}, init, true);
  out_ = parameters.add(prefix + ".o_proj.weight", {d, h * model.v_head_dim}, init, true);
}

// With k = W_uk c for a latent c, q k = (W_uk^T q) c; the value part of kv_b_proj is applied after the sum.
at::Tensor LatentAttention::attend_latents(const at::Tensor& q, const at::Tensor& latent,
                                           const at::Tensor& shared_key, const Extension& extension,
                                           double scale) const {
  const int64_t h = model_.num_attention_heads, nope = model_.qk_nope_head_dim, rank = model_.kv_lora_rank;
  const auto rows = at::cat({latent, shared_key}, 1).unsqueeze(1);  // [T, 1, rank + R]
  const auto keys = extension.append(rows, &LayerCache::keys);
  if (extension.prefill) return {};
  const auto up = kv_up_.view({h, nope + model_.v_head_dim, rank});
  const auto absorbed = ops::heads_linear(q.slice(2, 0, nope), up.slice(1, 0, nope), /*transposed=*/true);
  const ops::CachedSequences cached{keys, keys, extension.lengths, extension.counts, /*value_width=*/rank};
  const auto sums = ops::cached_attention(at::cat({absorbed, q.slice(2, nope)}, 2), cached, scale);
  return ops::heads_linear(sums, up.slice(1, nope), /*transposed=*/false).flatten(1);
}

at::Tensor LatentAttention::operator()(const at::Tensor& x_TD, int64_t batch, const RotaryTable& rotary,
                                       const Extension* extension, const AttentionOptions& options) const {
  const int64_t b = batch, s = x_TD.size(0) / b, h = model_.num_attention_heads,
                nope = model_.qk_nope_head_dim, rope = model_.qk_rope_head_dim, rank = model_.kv_lora_rank;
  const auto down = ops::linear(x_TD, down_);
  const auto parts = down.split_with_sizes({down.size(1) - rank - rope, rank, rope}, 1);
  auto queries = parts[0];
  if (q_up_.defined()) queries = ops::linear(ops::rms_norm(queries, q_norm_, kLatentEps), q_up_);
  queries = queries.reshape({b, s, h, nope + rope});
  const auto latent = ops::rms_norm(parts[1], kv_norm_, kLatentEps);
  const auto key = parts[2].view({b, s, rope});
  const auto expanded = [&] { return ops::linear(latent, kv_up_).view({b, s, h, nope + model_.v_head_dim}); };
  const double scale = yarn_logit_scale(model_.rope_scaling) / std::sqrt(static_cast<double>(nope + rope));
  if (x_TD.is_cuda() && !extension) {
    const auto heads =
        ops::latent_heads(queries, expanded(), key, rotary.cos, rotary.sin, model_.rope_interleave);
    return ops::linear(attend(heads.q, heads.k, heads.v, scale, extension, options), out_);
  }
  const auto apply_rope = [&](const at::Tensor& part) {
    return rotated(part, rotary, [&](const at::Tensor& t) {
      return ops::rope(t, rotary.cos, rotary.sin, model_.rope_interleave);
    });
  };
  const auto query_parts = queries.split_with_sizes({nope, rope}, 3);
  const auto q = at::cat({query_parts[0], apply_rope(query_parts[1])}, 3);
  const auto shared_key = apply_rope(key.unsqueeze(2)).squeeze(2);
  if (extension) {
    const auto out = attend_latents(q[0], latent, shared_key[0], *extension, scale);
    if (out.defined()) return ops::linear(out, out_);
  }
  const auto kv = expanded().split_with_sizes({nope, model_.v_head_dim}, 3);
  const auto k = at::cat({kv[0], shared_key.unsqueeze(2).expand({b, s, h, rope})}, 3);
  return ops::linear(attend(q, k, kv[1], scale, extension, options), out_);
}

}  // namespace hero
