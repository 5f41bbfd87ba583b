// The router as a pure function: the history is a list of tensors and nothing is mutated, as autograd,
// AOTAutograd and torch.compile require. Uses the kernels of route.cpp.
#include "ops/route_list.h"

#include <ATen/ATen.h>

#include "ops/differentiable.h"
#include "ops/ops.h"
#include "ops/reference.h"
#include "ops/registry.h"

namespace hero::ops {
namespace {

// Concatenates the columns of `parts`: a view if they are adjacent in one buffer, else a copy.
at::Tensor join_columns(at::TensorList parts) {
  const auto& first = parts[0];
  const int64_t rows = first.size(0), stride = first.stride(0);
  int64_t columns = 0;
  bool adjacent = true;
  for (const auto& part : parts) {
    adjacent = adjacent && part.is_alias_of(first) && part.scalar_type() == first.scalar_type() &&
               part.stride(0) == stride && (part.size(1) == 1 || part.stride(1) == 1) &&
               part.storage_offset() == first.storage_offset() + columns;
    columns += part.size(1);
  }
  if (adjacent && (rows == 1 || stride >= columns))
    return first.as_strided({rows, columns}, {stride, 1}, first.storage_offset());
  return at::cat(parts, 1);
}

// Stacks sums of squares [T] as columns.
at::Tensor join_sums(at::TensorList sums, at::ScalarType type) {
  std::vector<at::Tensor> columns;
  for (const auto& sum : sums) columns.push_back(sum.unsqueeze(1));
  return join_columns(columns).to(type);
}

std::optional<at::Tensor> joined(at::TensorList history) {
  return history.empty() ? std::nullopt : std::optional(join_columns(history));
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> route_list_forward(
    const at::Tensor& x, const at::Tensor& w, at::TensorList history, at::TensorList sumsq,
    double depth_factor, double eps, bool scale) {
  static const auto op = find_operator("hero::route_forward", route_forward_reference);
  const auto acc = accumulation_type(x.scalar_type());
  const auto squares = history.empty() ? std::nullopt : std::optional(join_sums(sumsq, acc));
  const auto stored = at::empty({x.size(0), w.size(0)}, x.options());
  const auto own = at::empty({x.size(0)}, x.options().dtype(acc));
  auto [logits, probs, stats] =
      op.call(x, w, joined(history), squares, depth_factor, eps, scale, stored, own);
  return {logits, probs, own, stats};
}

std::tuple<at::Tensor, at::Tensor> route_list_backward(const at::Tensor& dlogits, const at::Tensor& dprobs,
                                                       const at::Tensor& probs, const at::Tensor& x,
                                                       const at::Tensor& w, at::TensorList history,
                                                       const at::Tensor& stats) {
  static const auto input_op = find_operator("hero::route_backward_input", route_backward_input_reference);
  static const auto weight_op = find_operator("hero::route_backward_weight", route_backward_weight_reference);
  const auto joined_history = joined(history);
  const auto [dx, dz] = input_op.call(dlogits, dprobs, probs, x, w, joined_history, stats);
  return {dx, weight_op.call(dz, x, joined_history)};
}

std::tuple<at::Tensor, at::Tensor> history_logits_forward(const at::Tensor& x, const at::Tensor& w,
                                                          at::TensorList history, at::TensorList sumsq,
                                                          double depth_factor, double eps, bool scale) {
  const auto acc = accumulation_type(x.scalar_type());
  const auto h = join_columns(history);
  const auto rms_h = (join_sums(sumsq, acc).sum(1) / h.size(1)).sqrt();
  const auto rms_x = x.to(acc).pow(2).mean(1).sqrt();
  const auto rho = scale ? rms_x / (rms_h + eps) * depth_factor : at::ones_like(rms_h);
  return {rho.unsqueeze(1) * at::mm(h.to(acc), w.to(acc).t()), rho};
}

at::Tensor history_logits_backward(const at::Tensor& dz, const at::Tensor& rho, at::TensorList history) {
  return at::mm((dz * rho.unsqueeze(1)).t(), join_columns(history).to(dz.scalar_type()));
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RouteList : torch::autograd::Function<RouteList> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w,
                               at::TensorList history, at::TensorList sumsq, double depth_factor, double eps,
                               bool scale) {
    static const auto op = find_operator("hero::route_list_forward", route_list_forward);
    auto [logits, probs, squares, stats] = op.call(x, w, history, sumsq, depth_factor, eps, scale);
    if (ctx) {
      variable_list saved = {x, w, probs, stats};
      saved.insert(saved.end(), history.begin(), history.end());
      ctx->save_for_backward(std::move(saved));
      ctx->mark_non_differentiable({squares});
    }
    return {logits, probs, squares};
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    static const auto op = find_operator("hero::route_list_backward", route_list_backward);
    const auto saved = ctx->get_saved_variables();
    auto [dx, dw] = op.call(grads[0].contiguous(), grads[1].contiguous(), saved[2], saved[0], saved[1],
                            at::TensorList(saved).slice(4), saved[3]);
    variable_list out(2 + 2 * (saved.size() - 4) + 3);
    out[0] = dx;
    out[1] = dw;
    return out;
  }
};

struct HistoryLogits : torch::autograd::Function<HistoryLogits> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w,
                            at::TensorList history, at::TensorList sumsq, double depth_factor, double eps,
                            bool scale) {
    static const auto op = find_operator("hero::history_logits_forward", history_logits_forward);
    auto [logits, rho] = op.call(x, w, history, sumsq, depth_factor, eps, scale);
    if (ctx) {
      variable_list saved = {rho};
      saved.insert(saved.end(), history.begin(), history.end());
      ctx->save_for_backward(std::move(saved));
    }
    return logits;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    static const auto op = find_operator("hero::history_logits_backward", history_logits_backward);
    const auto saved = ctx->get_saved_variables();
    variable_list out(2 + 2 * (saved.size() - 1) + 3);
    out[1] = op.call(grads[0], saved[0], at::TensorList(saved).slice(1));
    return out;
  }
};

// The first `columns` columns of w belong to x, the others to the history.
void check_operands(const char* name, const at::Tensor& x, const at::Tensor& w, const c10::SymInt& columns,
                    at::TensorList history, at::TensorList sumsq) {
  TORCH_CHECK(x.dim() == 2 && w.dim() == 2, name, ": x must be [T, D] and weight a matrix, got ",
              x.sym_sizes(), " and ", w.sym_sizes());
  TORCH_CHECK(x.is_floating_point() && x.scalar_type() == w.scalar_type(), name, ": x is ", x.scalar_type(),
              ", weight is ", w.scalar_type());
  const auto tokens = x.sym_size(0), e = w.sym_size(0);
  const auto m = static_cast<int64_t>(history.size());
  TORCH_CHECK(w.sym_size(1) == columns + e * m, name, ": weight must be ", w.sym_size(0), " x ",
              columns + e * m, " for ", m, " layers of history, got ", w.sym_sizes());
  TORCH_CHECK(sumsq.size() == history.size(), name, ": expected one tensor of sums of squares per layer of ",
              "history, got ", sumsq.size(), " for ", history.size());
  for (size_t j = 0; j < history.size(); ++j) {
    TORCH_CHECK(history[j].dim() == 2 && history[j].sym_size(0) == tokens && history[j].sym_size(1) == e,
                name, ": history[", j, "] must be [T, E] = [", tokens, ", ", e, "], got ",
                history[j].sym_sizes());
    TORCH_CHECK(sumsq[j].dim() == 1 && sumsq[j].sym_size(0) == tokens, name, ": sumsq[", j,
                "] must be [T] = [", tokens, "], got ", sumsq[j].sym_sizes());
  }
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> route_list(const at::Tensor& x_TD, const at::Tensor& w,
                                                          at::TensorList history, at::TensorList sumsq,
                                                          double depth_factor, double eps, bool scale) {
  check_operands("route", x_TD, w, x_TD.sym_size(-1), history, sumsq);
  auto out = differentiable<RouteList>(x_TD.contiguous(), w, history, sumsq, depth_factor, eps, scale);
  return {out[0], out[1], out[2]};
}

at::Tensor history_logits(const at::Tensor& x_TD, const at::Tensor& w_R, at::TensorList history,
                          at::TensorList sumsq, double depth_factor, double eps, bool scale) {
  TORCH_CHECK(!history.empty(), "history_logits: expected at least one layer of history");
  check_operands("history_logits", x_TD, w_R, 0, history, sumsq);
  return differentiable<HistoryLogits>(x_TD, w_R, history, sumsq, depth_factor, eps, scale);
}

}  // namespace hero::ops
