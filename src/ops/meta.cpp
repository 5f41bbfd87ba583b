// Meta kernels (result shapes and types) for FakeTensor, AOTAutograd and torch.compile, with symbolic sizes.
// `plan_assignments` is missing: its number of rows is data-dependent, and only Python can create unbacked
// sizes.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "ops/registry.h"
#include "ops/route_stats.h"

namespace hero::ops::meta {
namespace {

using at::Tensor;
using Sizes = std::vector<c10::SymInt>;

Tensor like(const Tensor& x, const Sizes& sizes) { return at::empty_symint(sizes, x.options()); }
// In the accumulation type.
Tensor wide(const Tensor& x, const Sizes& sizes) {
  return at::empty_symint(sizes, x.options().dtype(accumulation_type(x.scalar_type())));
}

Tensor linear_forward(const Tensor& x, const Tensor& w) { return like(x, {x.sym_size(0), w.sym_size(0)}); }
Tensor linear_backward_input(const Tensor& dy, const Tensor& w) {
  return like(dy, {dy.sym_size(0), w.sym_size(1)});
}
Tensor linear_backward_weight(const Tensor& dy, const Tensor& x) {
  return wide(x, {dy.sym_size(1), x.sym_size(1)});
}

std::tuple<Tensor, Tensor> rms_norm_forward(const Tensor& x, const Tensor&, double) {
  return {like(x, {x.sym_size(0), x.sym_size(1)}), wide(x, {x.sym_size(0)})};
}
std::tuple<Tensor, Tensor, Tensor> add_rms_norm_forward(const Tensor& x, const Tensor&, const Tensor& w,
                                                        double eps) {
  auto [y, rstd] = rms_norm_forward(x, w, eps);
  return {at::empty_like(y), y, rstd};
}
std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor&, const Tensor& x, const Tensor& w, const Tensor&,
                                             const std::optional<Tensor>&) {
  return {like(x, {x.sym_size(0), x.sym_size(1)}), wide(x, {w.sym_size(0)})};
}

Tensor rope_turn(const Tensor& x, const Tensor&, const Tensor&, bool, bool) {
  return like(x, x.sym_sizes().vec());
}

Tensor swiglu_forward(const Tensor& gate_up) {
  auto sizes = gate_up.sym_sizes().vec();
  sizes.back() = sizes.back() / 2;
  return like(gate_up, sizes);
}
Tensor swiglu_backward(const Tensor&, const Tensor& gate_up) {
  return like(gate_up, gate_up.sym_sizes().vec());
}

std::tuple<Tensor, Tensor, Tensor, Tensor> route_list_forward(const Tensor& x, const Tensor& w,
                                                              at::TensorList, at::TensorList, double, double,
                                                              bool) {
  const auto tokens = x.sym_size(0), experts = w.sym_size(0);
  return {wide(x, {tokens, experts}), wide(x, {tokens, experts}), wide(x, {tokens}),
          wide(x, {tokens, kRouteStats})};
}
std::tuple<Tensor, Tensor> route_list_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor& x,
                                               const Tensor& w, at::TensorList, const Tensor&) {
  return {like(x, {x.sym_size(0), x.sym_size(1)}), wide(x, {w.sym_size(0), w.sym_size(1)})};
}

std::tuple<Tensor, Tensor> history_logits_forward(const Tensor& x, const Tensor& w, at::TensorList,
                                                  at::TensorList, double, double, bool) {
  return {wide(x, {x.sym_size(0), w.sym_size(0)}), wide(x, {x.sym_size(0)})};
}
Tensor history_logits_backward(const Tensor& dz, const Tensor&, at::TensorList history) {
  const auto experts = dz.sym_size(1);
  return like(dz, {experts, experts * static_cast<int64_t>(history.size())});
}

Tensor count_assignments(const Tensor& ids, int64_t experts) { return like(ids, {ids.sym_size(0), experts}); }
Tensor gather_rows(const Tensor& x, const Tensor& token) {
  return like(x, {token.sym_size(0), x.sym_size(1)});
}
Tensor sum_rows(const Tensor& x, const std::optional<Tensor>&, const Tensor& row,
                const std::optional<Tensor>&) {
  return like(x, {row.sym_size(0), x.sym_size(1)});
}
std::tuple<Tensor, Tensor> combine_backward(const Tensor&, const Tensor& y, const Tensor& weights,
                                            const Tensor& row, const Tensor&) {
  return {like(y, {y.sym_size(0), y.sym_size(1)}), like(weights, {row.sym_size(0), row.sym_size(1)})};
}

std::tuple<Tensor, Tensor> experts_forward(const Tensor& x, const Tensor& gate_up, const Tensor&,
                                           const Tensor&) {
  return {like(x, {x.sym_size(0), x.sym_size(1)}), like(x, {x.sym_size(0), gate_up.sym_size(1)})};
}
std::tuple<Tensor, Tensor, Tensor> experts_backward(const Tensor&, const Tensor& x, const Tensor&,
                                                    const Tensor& gate_up, const Tensor& down,
                                                    const Tensor&) {
  return {like(x, {x.sym_size(0), x.sym_size(1)}), wide(x, gate_up.sym_sizes().vec()),
          wide(x, down.sym_sizes().vec())};
}

std::tuple<Tensor, Tensor, Tensor> experts_backward_input(const Tensor& dy, const Tensor& h, const Tensor&,
                                                          const Tensor& down, const Tensor&) {
  return {like(dy, dy.sym_sizes().vec()), like(h, h.sym_sizes().vec()),
          like(h, {h.sym_size(0), down.sym_size(2)})};
}
Tensor experts_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& offsets) {
  return wide(x, {offsets.sym_size(0) - 1, dy.sym_size(1), x.sym_size(1)});
}

std::tuple<Tensor, Tensor, Tensor> linear_cross_entropy_forward(const Tensor& x, const Tensor& w,
                                                                const Tensor&, bool needs_dx, bool needs_dw) {
  const c10::SymInt none = 0;
  return {wide(x, {}), like(x, {needs_dx ? x.sym_size(0) : none, x.sym_size(1)}),
          wide(x, {needs_dw ? w.sym_size(0) : none, w.sym_size(1)})};
}

}  // namespace

TORCH_LIBRARY_IMPL(hero, Meta, m) {
  m.impl("linear_forward", linear_forward);
  m.impl("linear_backward_input", linear_backward_input);
  m.impl("linear_backward_weight", linear_backward_weight);
  m.impl("rms_norm_forward", rms_norm_forward);
  m.impl("add_rms_norm_forward", add_rms_norm_forward);
  m.impl("rms_norm_backward", rms_norm_backward);
  m.impl("rope_turn", rope_turn);
  m.impl("swiglu_forward", swiglu_forward);
  m.impl("swiglu_backward", swiglu_backward);
  m.impl("route_list_forward", route_list_forward);
  m.impl("route_list_backward", route_list_backward);
  m.impl("history_logits_forward", history_logits_forward);
  m.impl("history_logits_backward", history_logits_backward);
  m.impl("count_assignments", count_assignments);
  m.impl("gather_rows", gather_rows);
  m.impl("sum_rows", sum_rows);
  m.impl("combine_backward", combine_backward);
  m.impl("experts_forward", experts_forward);
  m.impl("experts_backward", experts_backward);
  m.impl("experts_backward_input", experts_backward_input);
  m.impl("experts_backward_weight", experts_backward_weight);
  m.impl("linear_cross_entropy_forward", linear_cross_entropy_forward);
}

}  // namespace hero::ops::meta
