// Registers the implementations for every device and type: those of reference.h, and of count.h and
// route_list.h.
#include <torch/library.h>

#include "ops/count.h"
#include "ops/reference.h"
#include "ops/route_list.h"

namespace hero::ops {

TORCH_LIBRARY_IMPL(hero, CompositeExplicitAutograd, m) {
  m.impl("linear_forward", linear_forward_reference);
  m.impl("linear_backward_input", linear_backward_input_reference);
  m.impl("linear_backward_weight", linear_backward_weight_reference);
  m.impl("rms_norm_forward", rms_norm_forward_reference);
  m.impl("add_rms_norm_forward", add_rms_norm_forward_reference);
  m.impl("rms_norm_backward", rms_norm_backward_reference);
  m.impl("rope_turn", rope_reference);
  m.impl("norm_rope_forward", norm_rope_forward_reference);
  m.impl("norm_rope_backward", norm_rope_backward_reference);
  m.impl("latent_heads_forward", latent_heads_forward_reference);
  m.impl("latent_heads_backward", latent_heads_backward_reference);
  m.impl("attention_is_fused", attention_is_fused_reference);
  m.impl("attention_forward", attention_forward_reference);
  m.impl("attention_backward", attention_backward_reference);
  m.impl("cached_attention", cached_attention_reference);
  m.impl("heads_linear", heads_linear_reference);
  m.impl("swiglu_forward", swiglu_forward_reference);
  m.impl("swiglu_backward", swiglu_backward_reference);
  m.impl("route_forward", route_forward_reference);
  m.impl("route_backward_input", route_backward_input_reference);
  m.impl("route_backward_weight", route_backward_weight_reference);
  m.impl("route_list_forward", route_list_forward);
  m.impl("route_list_backward", route_list_backward);
  m.impl("history_logits_forward", history_logits_forward);
  m.impl("history_logits_backward", history_logits_backward);
  m.impl("top_experts", top_experts_reference);
  m.impl("expert_weights", expert_weights_reference);
  m.impl("expert_weights_backward", expert_weights_backward_reference);
  m.impl("count_assignments", count_assignments_reference);
  m.impl("plan_assignments", plan_reference);
  m.impl("gather_rows", gather_rows_reference);
  m.impl("sum_rows", sum_rows_reference);
  m.impl("combine_backward", combine_backward_reference);
  m.impl("experts_forward", experts_forward_reference);
  m.impl("experts_backward", experts_backward_reference);
  m.impl("experts_backward_input", experts_backward_input_reference);
  m.impl("experts_backward_weight", experts_backward_weight_reference);
  m.impl("experts_add_backward_weight", experts_add_backward_weight_reference);
  m.impl("linear_cross_entropy_forward", linear_cross_entropy_reference);
  m.impl("newton_schulz", newton_schulz_reference);
  m.impl("sum_of_squares", sum_of_squares_reference);
  m.impl("adamw_step", adamw_step_reference);
}

}  // namespace hero::ops
