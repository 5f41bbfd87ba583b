// Registers the kernels of kernels.h. Not compiled with the kernels' flags, nor for narrower instruction sets
// by the tests.
#include <torch/library.h>

#include "ops/cpu/kernels.h"

namespace hero::cpu {
namespace {

std::vector<RegisteredKernel>& kernels() {
  static std::vector<RegisteredKernel> all;
  return all;
}

template <class Function>
void register_kernel(torch::Library& m, const char* op, Function* function) {
  m.impl(op, function);
  kernels().push_back({op, reinterpret_cast<const void*>(function)});
}

}  // namespace

TORCH_LIBRARY_IMPL(hero, CPU, m) {
  register_kernel(m, "linear_forward", linear_forward);
  register_kernel(m, "linear_backward_input", linear_backward_input);
  register_kernel(m, "linear_backward_weight", linear_backward_weight);
  register_kernel(m, "rms_norm_forward", rms_norm_forward);
  register_kernel(m, "add_rms_norm_forward", add_rms_norm_forward);
  register_kernel(m, "rms_norm_backward", rms_norm_backward);
  register_kernel(m, "rope_turn", rope_turn);
  register_kernel(m, "norm_rope_forward", norm_rope_forward);
  register_kernel(m, "norm_rope_backward", norm_rope_backward);
  register_kernel(m, "attention_forward", attention_forward);
  register_kernel(m, "attention_backward", attention_backward);
  register_kernel(m, "cached_attention", cached_attention);
  register_kernel(m, "heads_linear", heads_linear);
  register_kernel(m, "swiglu_forward", swiglu_forward);
  register_kernel(m, "swiglu_backward", swiglu_backward);
  register_kernel(m, "route_forward", route_forward);
  register_kernel(m, "route_backward_input", route_backward_input);
  register_kernel(m, "route_backward_weight", route_backward_weight);
  register_kernel(m, "top_experts", top_experts);
  register_kernel(m, "expert_weights", expert_weights);
  register_kernel(m, "expert_weights_backward", expert_weights_backward);
  register_kernel(m, "count_assignments", count_assignments);
  register_kernel(m, "plan_assignments", plan_assignments);
  register_kernel(m, "gather_rows", gather_rows);
  register_kernel(m, "sum_rows", sum_rows);
  register_kernel(m, "combine_backward", combine_backward);
  register_kernel(m, "experts_forward", experts_forward);
  register_kernel(m, "experts_backward", experts_backward);
  register_kernel(m, "experts_backward_input", experts_backward_input);
  register_kernel(m, "experts_backward_weight", experts_backward_weight);
  register_kernel(m, "linear_cross_entropy_forward", linear_cross_entropy_forward);
  register_kernel(m, "newton_schulz", newton_schulz);
  register_kernel(m, "sum_of_squares", sum_of_squares);
  register_kernel(m, "adamw_step", adamw_step);
}

const std::vector<RegisteredKernel>& registered_kernels() { return kernels(); }

}  // namespace hero::cpu
