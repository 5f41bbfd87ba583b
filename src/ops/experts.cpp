// Grouped expert MLP: per row (silu(x G_e^T) * (x U_e^T)) D_e^T, rows sorted by expert. Experts without rows
// cost nothing and get gradients of exactly zero.
#include <ATen/ATen.h>

#include "ops/differentiable.h"
#include "ops/ops.h"
#include "ops/reference.h"
#include "ops/registry.h"

namespace hero::ops {
namespace {

// The rows of expert e.
at::Tensor rows_of(const at::Tensor& x, const int64_t* offsets, int64_t e) {
  return x.slice(0, offsets[e], offsets[e + 1]);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> experts_forward_reference(const at::Tensor& x, const at::Tensor& gate_up,
                                                             const at::Tensor& down,
                                                             const at::Tensor& offsets) {
  const auto bounds = offsets.to(at::kCPU);
  const auto* o = bounds.const_data_ptr<int64_t>();
  auto y = at::empty_like(x), h = at::empty({x.size(0), gate_up.size(1)}, x.options());
  for (int64_t e = 0; e < gate_up.size(0); ++e) {
    if (o[e] == o[e + 1]) continue;
    rows_of(h, o, e).copy_(at::mm(rows_of(x, o, e), gate_up[e].t()));
    rows_of(y, o, e).copy_(at::mm(swiglu_forward_reference(rows_of(h, o, e)), down[e].t()));
  }
  y.slice(0, o[gate_up.size(0)]).zero_();
  return {y, h};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> experts_backward_input_reference(const at::Tensor& dy,
                                                                                const at::Tensor& h,
                                                                                const at::Tensor& gate_up,
                                                                                const at::Tensor& down,
                                                                                const at::Tensor& offsets) {
  const auto bounds = offsets.to(at::kCPU);
  const auto* o = bounds.const_data_ptr<int64_t>();
  auto dx = at::empty_like(dy), dh = at::empty_like(h),
       act = at::empty({h.size(0), down.size(2)}, h.options());
  for (int64_t e = 0; e < gate_up.size(0); ++e) {
    if (o[e] == o[e + 1]) continue;
    const auto h_e = rows_of(h, o, e), dh_e = rows_of(dh, o, e);
    dh_e.copy_(swiglu_backward_reference(at::mm(rows_of(dy, o, e), down[e]), h_e));
    rows_of(act, o, e).copy_(swiglu_forward_reference(h_e));
    rows_of(dx, o, e).copy_(at::mm(dh_e, gate_up[e]));
  }
  dx.slice(0, o[gate_up.size(0)]).zero_();
  return {dx, dh, act};
}

at::Tensor experts_backward_weight_reference(const at::Tensor& dy, const at::Tensor& x,
                                             const at::Tensor& offsets) {
  const auto acc = accumulation_type(x.scalar_type());
  const auto bounds = offsets.to(at::kCPU);
  const auto* o = bounds.const_data_ptr<int64_t>();
  auto dw = at::zeros({offsets.size(0) - 1, dy.size(1), x.size(1)}, x.options().dtype(acc));
  for (int64_t e = 0; e < dw.size(0); ++e) {
    if (o[e] == o[e + 1]) continue;
    dw[e].copy_(at::mm(rows_of(dy, o, e).to(acc).t(), rows_of(x, o, e).to(acc)));
  }
  return dw;
}

void experts_add_backward_weight_reference(const at::Tensor& grad, const at::Tensor& dy, const at::Tensor& x,
                                           const at::Tensor& offsets) {
  static const auto op = find_operator("hero::experts_backward_weight", experts_backward_weight_reference);
  grad.add_(op.call(dy, x, offsets));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> experts_backward_reference(
    const at::Tensor& dy, const at::Tensor& x, const at::Tensor& h, const at::Tensor& gate_up,
    const at::Tensor& down, const at::Tensor& offsets) {
  const auto [dx, dh, act] = experts_backward_input_reference(dy, h, gate_up, down, offsets);
  return {dx, experts_backward_weight_reference(dh, x, offsets),
          experts_backward_weight_reference(dy, act, offsets)};
}

namespace {

// The gradient of `weight`; undefined if it was deferred or added to the weight's grad.
at::Tensor experts_weight_gradient(torch::autograd::AutogradContext* ctx, size_t input,
                                   const at::Tensor& weight, const at::Tensor& dy, const at::Tensor& x,
                                   const at::Tensor& offsets) {
  static const auto op = find_operator("hero::experts_backward_weight", experts_backward_weight_reference);
  static const auto add_op =
      find_operator("hero::experts_add_backward_weight", experts_add_backward_weight_reference);
  if (!ctx->needs_input_grad(input) || !can_accumulate(ctx, weight))
    return weight_gradient(ctx, input, weight, op, dy, x, offsets);
  add_op.call(weight.grad(), dy, x, offsets);
  return {};
}

struct Experts : torch::autograd::Function<Experts> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& gate_up, const at::Tensor& down, const at::Tensor& offsets) {
    static const auto op = find_operator("hero::experts_forward", experts_forward_reference);
    auto [y, h] = op.call(x, gate_up, down, offsets);
    if (ctx) {
      ctx->save_for_backward({needed_for_gradient(x, gate_up), h, gate_up, down, offsets});
      save_queue(ctx);
      save_accumulation(ctx);
    }
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    static const auto op = find_operator("hero::experts_backward", experts_backward_reference);
    static const auto input_op =
        find_operator("hero::experts_backward_input", experts_backward_input_reference);
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &h = saved[1], &gate_up = saved[2], &down = saved[3], &offsets = saved[4];
    const auto dy = grads[0].contiguous();
    const bool both_weights = ctx->needs_input_grad(1) && ctx->needs_input_grad(2);
    if (both_weights && !saved_queue(ctx) && !accumulates(ctx)) {
      auto [dx, dgate_up, ddown] = op.call(dy, x, h, gate_up, down, offsets);
      return {dx, dgate_up, ddown, {}};
    }
    const auto [dx, dh, act] = input_op.call(dy, h, gate_up, down, offsets);
    return {dx,
            experts_weight_gradient(ctx, 1, gate_up, dh, x, offsets),
            experts_weight_gradient(ctx, 2, down, dy, act, offsets),
            {}};
  }
};

}  // namespace

at::Tensor experts(const at::Tensor& x_ND, const at::Tensor& gate_up, const at::Tensor& down,
                   const Plan& plan) {
  TORCH_CHECK(x_ND.dim() == 2 && plan.offsets.dim() == 1, "experts: x must be [N, D] and offsets [E+1], got ",
              x_ND.sym_sizes(), " and ", plan.offsets.sym_sizes());
  const auto e = plan.offsets.sym_size(0) - 1, d = x_ND.sym_size(1);
  TORCH_CHECK(gate_up.dim() == 3 && gate_up.sym_size(0) == e && gate_up.sym_size(2) == d &&
                  gate_up.sym_size(1) % 2 == 0,
              "experts: gate_up must be [E, 2F, D] = [", e, ", 2F, ", d, "], got ", gate_up.sym_sizes());
  TORCH_CHECK(down.dim() == 3 && down.sym_size(0) == e && down.sym_size(1) == d &&
                  down.sym_size(2) * 2 == gate_up.sym_size(1),
              "experts: down must be [E, D, F] = [", e, ", ", d, ", ", gate_up.sym_size(1) / 2, "], got ",
              down.sym_sizes());
  return differentiable<Experts>(x_ND, gate_up, down, plan.offsets);
}

}  // namespace hero::ops
