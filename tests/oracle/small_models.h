#pragma once
// Small configurations of both model families and helpers for tests.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include "config/config.h"
#include "model/transformer.h"

namespace small {

/// Odd sizes, for which only the reference kernels run.
inline hero::Config qwen() {
  hero::Config c;
  c.model.vocab_size = 37;
  c.model.hidden_size = 24;
  c.model.num_hidden_layers = 4;
  c.model.num_attention_heads = 4;
  c.model.num_key_value_heads = 2;
  c.model.head_dim = 6;
  c.model.num_experts = 8;
  c.model.num_experts_per_tok = 3;
  c.model.moe_intermediate_size = 10;
  c.model.initializer_range = 0.2;
  c.router.kind = "hero";
  c.train.dtype = hero::Dtype::kFp64;
  return c;
}

inline hero::Config deepseek() {
  hero::Config c = qwen();
  c.model.model_type = hero::ModelType::kDeepseekV3;
  c.model.num_hidden_layers = 5;
  c.model.kv_lora_rank = 7;
  c.model.qk_nope_head_dim = 6;
  c.model.qk_rope_head_dim = 4;
  c.model.v_head_dim = 5;
  c.model.intermediate_size = 14;
  c.model.first_k_dense_replace = 1;
  return c;
}

/// Multiples of 16: the fused bf16 kernels run if the CPU supports them.
inline hero::Config fused(hero::Config c) {
  c.model.vocab_size = 96;
  c.model.hidden_size = 64;
  c.model.num_attention_heads = 4;
  c.model.head_dim = 16;
  c.model.kv_lora_rank = 32;
  c.model.qk_nope_head_dim = 16;
  c.model.qk_rope_head_dim = 16;
  c.model.v_head_dim = 32;
  c.model.intermediate_size = 64;
  c.model.num_experts = 32;
  c.model.num_experts_per_tok = 4;
  c.model.moe_intermediate_size = 32;
  c.train.dtype = hero::Dtype::kBf16;
  return c;
}

inline at::Tensor normal(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::kDouble);
}

inline at::Tensor tokens(int64_t batch, int64_t length, int64_t vocabulary, uint64_t seed) {
  return at::randint(vocabulary, {batch, length}, at::detail::createCPUGenerator(seed), at::kLong);
}

/// Perturbs all weights and expert biases, so that no weight stays one and no bias zero.
inline void perturb(hero::Transformer& model, double amount, uint64_t seed) {
  at::NoGradGuard no_grad;
  for (auto& p : model.parameters().all())
    p.values.add_(normal(p.values.sizes(), seed++).to(p.values.scalar_type()), amount);
  for (const auto& [name, bias] : model.parameters().buffers())
    bias.add_(normal(bias.sizes(), seed++).to(at::kFloat), 0.1);
  model.parameters().update_leaves();
}

/// max |a - b| / max |b|
inline double relative_error(const at::Tensor& a, const at::Tensor& b) {
  const auto wide_a = a.detach().to(at::kDouble), wide_b = b.detach().to(at::kDouble);
  const double largest = wide_b.abs().max().item<double>(),
               off = (wide_a - wide_b).abs().max().item<double>();
  return largest > 0 ? off / largest : off;
}

/// Gradient of a parameter's part, zeros if undefined.
inline at::Tensor gradient(const hero::Parameter& p, const hero::ParameterPart& part) {
  return part.view_of(p.leaf.grad().defined() ? p.leaf.grad() : at::zeros_like(p.values));
}

}  // namespace small
