// Token dispatch: counts, plan, permute, combine. Rows are sorted by expert. Both backward passes also
// gather, through the inverse map, so nothing scatters and the summation order is fixed.
#include <ATen/ATen.h>

#include "ops/count.h"
#include "ops/differentiable.h"
#include "ops/ops.h"
#include "ops/reference.h"
#include "ops/registry.h"

namespace hero::ops {

at::Tensor count_assignments_reference(const at::Tensor& ids, int64_t experts) {
  const auto place = at::where(ids.ge(0), ids, experts);
  return at::zeros({ids.size(0), experts + 1}, ids.options())
      .scatter_add_(1, place, at::ones_like(ids))
      .slice(1, 0, experts)
      .contiguous();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> plan_reference(const at::Tensor& ids,
                                                                          int64_t experts) {
  const auto flat = ids.flatten();
  const int64_t k = ids.size(1);
  const auto kept = flat.ge(0);
  const auto sorted =
      at::argsort(at::where(kept, flat, experts), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const auto counts = at::bincount(flat.masked_select(kept), {}, experts);
  const auto offsets = at::cat({at::zeros({1}, counts.options()), counts.cumsum(0)});
  const int64_t rows = offsets[experts].item<int64_t>();
  const auto assignment = sorted.slice(0, 0, rows);
  auto row = at::full_like(flat, -1);
  row.index_copy_(0, assignment, at::arange(rows, flat.options()));
  return {counts, offsets, assignment.div(k, "floor"), row.view_as(ids)};
}

at::Tensor gather_rows_reference(const at::Tensor& x, const at::Tensor& token) {
  return x.index_select(0, token);
}

at::Tensor sum_rows_reference(const at::Tensor& x, const std::optional<at::Tensor>& weights,
                              const at::Tensor& row, const std::optional<at::Tensor>& base) {
  const auto acc = accumulation_type(x.scalar_type());
  auto sum = base ? base->to(acc) : at::zeros({row.size(0), x.size(1)}, x.options().dtype(acc));
  if (x.size(0) == 0) return sum.to(x.scalar_type());
  for (int64_t k = 0; k < row.size(1); ++k) {
    const auto index = row.select(1, k), kept = index.ge(0).unsqueeze(1);
    auto part = at::where(kept, x.index_select(0, index.clamp_min(0)).to(acc), at::zeros({}, sum.options()));
    sum = sum + (weights ? part * weights->select(1, k).to(acc).unsqueeze(1) : part);
  }
  return sum.to(x.scalar_type());
}

std::tuple<at::Tensor, at::Tensor> combine_backward_reference(const at::Tensor& dy, const at::Tensor& y,
                                                              const at::Tensor& weights,
                                                              const at::Tensor& row,
                                                              const at::Tensor& token) {
  const auto acc = accumulation_type(y.scalar_type());
  auto weight_N = at::zeros({y.size(0)}, y.options().dtype(acc));
  const auto kept = row.ge(0);
  weight_N.index_copy_(0, row.masked_select(kept), weights.to(acc).masked_select(kept));
  const auto dy_N = dy.index_select(0, token).to(acc);
  const auto dots = (dy_N * y.to(acc)).sum(1);
  auto dweights = at::zeros_like(weights);
  if (y.size(0))
    dweights = at::where(kept, dots.index_select(0, row.clamp_min(0).flatten()).view_as(row), 0)
                   .to(weights.scalar_type());
  return {(dy_N * weight_N.unsqueeze(1)).to(y.scalar_type()), dweights};
}

namespace {

at::Tensor sum_rows(const at::Tensor& x, const std::optional<at::Tensor>& weights, const at::Tensor& row,
                    const std::optional<at::Tensor>& base) {
  static const auto op = find_operator("hero::sum_rows", sum_rows_reference);
  return op.call(x, weights, row, base);
}

struct Permute : torch::autograd::Function<Permute> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& token, const at::Tensor& row) {
    static const auto op = find_operator("hero::gather_rows", gather_rows_reference);
    if (ctx) ctx->save_for_backward({row});
    return op.call(x, token);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto row = ctx->get_saved_variables()[0];
    return {sum_rows(grads[0].contiguous(), std::nullopt, row, std::nullopt), {}, {}};
  }
};

struct Combine : torch::autograd::Function<Combine> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& y,
                            const at::Tensor& weights, const at::Tensor& row, const at::Tensor& token,
                            const std::optional<at::Tensor>& base) {
    if (ctx) {
      ctx->save_for_backward({y, weights, row, token});
      ctx->saved_data["base"] = base.has_value();
    }
    return sum_rows(y, weights, row, base);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    static const auto op = find_operator("hero::combine_backward", combine_backward_reference);
    const auto saved = ctx->get_saved_variables();
    auto [dy, dweights] = op.call(grads[0].contiguous(), saved[0], saved[1], saved[2], saved[3]);
    return {dy, dweights, {}, {}, ctx->saved_data["base"].toBool() ? grads[0] : at::Tensor()};
  }
};

}  // namespace

at::Tensor count_assignments(const at::Tensor& ids_GN, int64_t experts) {
  TORCH_CHECK(ids_GN.dim() == 2 && ids_GN.scalar_type() == at::kLong,
              "count_assignments: ids must be int64 [G, N], got ", ids_GN.scalar_type(), " ",
              ids_GN.sym_sizes());
  static const auto op = find_operator("hero::count_assignments", count_assignments_reference);
  return op.call(ids_GN.contiguous(), experts);
}

Plan plan(const at::Tensor& ids_TK, int64_t experts) {
  TORCH_CHECK(ids_TK.dim() == 2 && ids_TK.scalar_type() == at::kLong, "plan: ids must be int64 [T, K], got ",
              ids_TK.scalar_type(), " ", ids_TK.sym_sizes());
  static const auto op = find_operator("hero::plan_assignments", plan_reference);
  auto [counts, offsets, token, row] = op.call(ids_TK.contiguous(), experts);
  return {counts, offsets, token, row};
}

at::Tensor permute(const at::Tensor& x_TD, const Plan& plan) {
  return differentiable<Permute>(x_TD, plan.token, plan.row);
}

at::Tensor combine(const at::Tensor& y_ND, const at::Tensor& weights_TK, const Plan& plan,
                   const at::Tensor& base_TD) {
  TORCH_CHECK(weights_TK.sym_sizes() == plan.row.sym_sizes(),
              "combine: weights must be [T, K] = ", plan.row.sym_sizes(), ", got ", weights_TK.sym_sizes());
  TORCH_CHECK(!base_TD.defined() ||
                  (base_TD.dim() == 2 && base_TD.sym_size(0) == plan.row.sym_size(0) &&
                   base_TD.sym_size(1) == y_ND.sym_size(1) && base_TD.scalar_type() == y_ND.scalar_type()),
              "combine: the base must be [T, D] = [", plan.row.sym_size(0), ", ", y_ND.sym_size(1), "] ",
              y_ND.scalar_type(), ", got ", base_TD.sym_sizes(), " ", base_TD.scalar_type());
  const auto base = base_TD.defined() ? std::optional(base_TD) : std::nullopt;
  return differentiable<Combine>(y_ND, weights_TK.contiguous(), plan.row, plan.token, base);
}

}  // namespace hero::ops
