// Schemas of the kernel operators. The implementations are registered in register_reference.cpp (every
// device), cpu/register.cpp, cuda/ and meta.cpp; torch_ops.cpp has the operators that Python calls.
// Registrations may run in any order, because find_operator looks an operator up at its first call.
#include <torch/library.h>

TORCH_LIBRARY_FRAGMENT(hero, m) {
  // linear.cpp
  m.def("linear_forward(Tensor x, Tensor w) -> Tensor");
  m.def("linear_backward_input(Tensor dy, Tensor w) -> Tensor");
  m.def("linear_backward_weight(Tensor dy, Tensor x) -> Tensor");
  // rms_norm.cpp
  m.def("rms_norm_forward(Tensor x, Tensor w, float eps) -> (Tensor, Tensor)");
  m.def("add_rms_norm_forward(Tensor x, Tensor update, Tensor w, float eps) -> (Tensor, Tensor, Tensor)");
  m.def(
      "rms_norm_backward(Tensor dy, Tensor x, Tensor w, Tensor rstd, Tensor? dsum=None) -> (Tensor, Tensor)");
  // rope.cpp
  m.def("rope_turn(Tensor x, Tensor cos, Tensor sin, bool interleave, bool inverse) -> Tensor");
  // norm_rope.cpp
  m.def("norm_rope_forward(Tensor x, Tensor w, float eps, Tensor cos, Tensor sin) -> (Tensor, Tensor)");
  m.def(
      "norm_rope_backward(Tensor dy, Tensor x, Tensor w, Tensor rstd, Tensor cos, Tensor sin) -> (Tensor, "
      "Tensor)");
  // latent_heads.cpp
  m.def(
      "latent_heads_forward(Tensor queries, Tensor kv, Tensor key, Tensor cos, Tensor sin, bool interleave) "
      "-> (Tensor, Tensor)");
  m.def(
      "latent_heads_backward(Tensor dq, Tensor dk, Tensor dv, Tensor cos, Tensor sin, bool interleave) -> "
      "(Tensor, Tensor, Tensor)");
  // attention.cpp
  m.def("attention_is_fused(Tensor q, Tensor k, Tensor v, float scale) -> bool");
  m.def(
      "attention_forward(Tensor q, Tensor k, Tensor v, float scale, Tensor? starts=None) -> (Tensor, "
      "Tensor)");
  m.def(
      "attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, float scale, "
      "Tensor? starts=None) -> (Tensor, Tensor, Tensor)");
  // cached_attention.cpp
  m.def(
      "cached_attention(Tensor q, Tensor[] keys, Tensor[] values, int[] lengths, int[] counts, int "
      "value_width, float scale) -> Tensor");
  m.def("heads_linear(Tensor x, Tensor w, bool transposed) -> Tensor");
  // swiglu.cpp
  m.def("swiglu_forward(Tensor gate_up) -> Tensor");
  m.def("swiglu_backward(Tensor dy, Tensor gate_up) -> Tensor");
  // route.cpp
  m.def(
      "route_forward(Tensor x, Tensor w, Tensor? history, Tensor? sumsq, float depth_factor, float eps, bool "
      "scale, Tensor(a!)? slot, Tensor(b!)? slot_sumsq) -> (Tensor, Tensor, Tensor)");
  m.def(
      "route_backward_input(Tensor dlogits, Tensor dprobs, Tensor probs, Tensor x, Tensor w, Tensor? "
      "history, Tensor stats) -> (Tensor, Tensor)");
  m.def("route_backward_weight(Tensor dz, Tensor x, Tensor? history) -> Tensor");
  // route_list.cpp
  m.def(
      "route_list_forward(Tensor x, Tensor w, Tensor[] history, Tensor[] sumsq, float depth_factor, float "
      "eps, bool scale) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "route_list_backward(Tensor dlogits, Tensor dprobs, Tensor probs, Tensor x, Tensor w, Tensor[] "
      "history, Tensor stats) -> (Tensor, Tensor)");
  m.def(
      "history_logits_forward(Tensor x, Tensor w, Tensor[] history, Tensor[] sumsq, float depth_factor, "
      "float eps, bool scale) -> (Tensor, Tensor)");
  m.def("history_logits_backward(Tensor dz, Tensor rho, Tensor[] history) -> Tensor");
  // top_experts.cpp
  m.def("top_experts(Tensor scores, Tensor? bias, int k, int groups, int kept_groups) -> Tensor");
  m.def("expert_weights(Tensor scores, Tensor ids, bool normalise, float eps, float factor) -> Tensor");
  m.def(
      "expert_weights_backward(Tensor dweights, Tensor scores, Tensor ids, bool normalise, float eps, float "
      "factor) -> Tensor");
  // dispatch.cpp
  m.def("count_assignments(Tensor ids, int experts) -> Tensor");
  m.def("plan_assignments(Tensor ids, int experts) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def("gather_rows(Tensor x, Tensor token) -> Tensor");
  m.def("sum_rows(Tensor x, Tensor? weights, Tensor row, Tensor? base=None) -> Tensor");
  m.def(
      "combine_backward(Tensor dy, Tensor y, Tensor weights, Tensor row, Tensor token) -> (Tensor, Tensor)");
  // experts.cpp
  m.def("experts_forward(Tensor x, Tensor gate_up, Tensor down, Tensor offsets) -> (Tensor, Tensor)");
  m.def(
      "experts_backward(Tensor dy, Tensor x, Tensor h, Tensor gate_up, Tensor down, Tensor offsets) -> "
      "(Tensor, Tensor, Tensor)");
  m.def(
      "experts_backward_input(Tensor dy, Tensor h, Tensor gate_up, Tensor down, Tensor offsets) -> (Tensor, "
      "Tensor, Tensor)");
  m.def("experts_backward_weight(Tensor dy, Tensor x, Tensor offsets) -> Tensor");
  m.def("experts_add_backward_weight(Tensor(a!) grad, Tensor dy, Tensor x, Tensor offsets) -> ()");
  // linear_cross_entropy.cpp
  m.def(
      "linear_cross_entropy_forward(Tensor x, Tensor w, Tensor targets, bool needs_dx, bool needs_dw) -> "
      "(Tensor, Tensor, Tensor)");
  // newton_schulz.cpp
  m.def("newton_schulz(Tensor x) -> Tensor");
  // adamw.cpp
  m.def("sum_of_squares(Tensor[] tensors) -> Tensor");
  m.def(
      "adamw_step(Tensor(a!)[] values, Tensor[] gradients, Tensor(b!)[] exp_avg, Tensor(c!)[] exp_avg_sq, "
      "Tensor(d!)[] leaves, Tensor step, float lr, float beta1, float beta2, float weight_decay, float eps, "
      "Tensor? scale, Tensor? skip) -> ()");
}
