// torch.ops.hero.*: the operators that Python calls. Each wraps a function of ops.h, whose
// torch::autograd::Function provides the gradient; tracers see the functional kernels inside.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "ops/ops.h"

namespace hero::ops {
namespace {

using at::Tensor;
using RouteResult = std::tuple<Tensor, Tensor, Tensor>;

std::tuple<Tensor, Tensor, Tensor, Tensor> plan_public(const Tensor& ids, int64_t experts) {
  auto result = plan(ids, experts);
  return {result.counts, result.offsets, result.token, result.row};
}

Tensor rms_norm_public(const Tensor& x, const Tensor& weight, double eps) {
  return rms_norm(x, weight.contiguous(), eps);
}

Tensor permute_public(const Tensor& x, const Tensor& token, const Tensor& row) {
  TORCH_CHECK(x.dim() == 2 && token.dim() == 1 && row.dim() == 2 && row.sym_size(0) == x.sym_size(0),
              "permute: x must be [T, D], token [N] and row [T, K], got ", x.sym_sizes(), ", ",
              token.sym_sizes(), ", ", row.sym_sizes());
  return permute(x, {.counts = {}, .offsets = {}, .token = token.contiguous(), .row = row.contiguous()});
}

Tensor experts_public(const Tensor& x, const Tensor& gate_up, const Tensor& down, const Tensor& offsets) {
  TORCH_CHECK(x.scalar_type() == gate_up.scalar_type() && x.scalar_type() == down.scalar_type(),
              "experts: x is ", x.scalar_type(), ", gate_up is ", gate_up.scalar_type(), ", down is ",
              down.scalar_type());
  return experts(x.contiguous(), gate_up, down,
                 {.counts = {}, .offsets = offsets.contiguous(), .token = {}, .row = {}});
}

Tensor combine_public(const Tensor& y, const Tensor& weights, const Tensor& row, const Tensor& token) {
  TORCH_CHECK(y.dim() == 2 && token.dim() == 1 && y.sym_size(0) == token.sym_size(0),
              "combine: y must be [N, D] and token [N], got ", y.sym_sizes(), " and ", token.sym_sizes());
  return combine(y.contiguous(), weights,
                 {.counts = {}, .offsets = {}, .token = token.contiguous(), .row = row.contiguous()});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hero, m) {
  m.def("linear(Tensor x, Tensor weight) -> Tensor");
  m.def("embedding(Tensor ids, Tensor weight) -> Tensor");
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  m.def("rope(Tensor x, Tensor cos, Tensor sin, bool interleave) -> Tensor");
  m.def("swiglu(Tensor gate_up) -> Tensor");
  m.def(
      "route(Tensor x, Tensor weight, Tensor[] history, Tensor[] sumsq, float depth_factor, float eps, bool "
      "scale) -> (Tensor logits, Tensor probs, Tensor sumsq)");
  m.def(
      "history_logits(Tensor x, Tensor weight, Tensor[] history, Tensor[] sumsq, float depth_factor, float "
      "eps, bool scale) -> Tensor");
  m.def("plan(Tensor ids, int experts) -> (Tensor counts, Tensor offsets, Tensor token, Tensor row)");
  m.def("permute(Tensor x, Tensor token, Tensor row) -> Tensor");
  m.def("experts(Tensor x, Tensor gate_up, Tensor down, Tensor offsets) -> Tensor");
  m.def("combine(Tensor y, Tensor weights, Tensor row, Tensor token) -> Tensor");
  m.def("linear_cross_entropy(Tensor x, Tensor weight, Tensor targets) -> Tensor");
}
TORCH_LIBRARY_IMPL(hero, CompositeImplicitAutograd, m) {
  m.impl("linear", linear);
  m.impl("embedding", embedding);
  m.impl("rms_norm", rms_norm_public);
  m.impl("rope", rope);
  m.impl("swiglu", swiglu);
  m.impl("route", route_list);
  m.impl("history_logits", history_logits);
  m.impl("plan", plan_public);
  m.impl("permute", permute_public);
  m.impl("experts", experts_public);
  m.impl("combine", combine_public);
  m.impl("linear_cross_entropy", linear_cross_entropy);
}

// Autocast: operands of GEMMs are cast to the lower type; histories keep their type, and logits and losses
// are always fp32.
namespace {

template <c10::DeviceType device>
struct Autocast {
  static constexpr auto kKey =
      device == c10::kCUDA ? c10::DispatchKey::AutocastCUDA : c10::DispatchKey::AutocastCPU;
  c10::impl::ExcludeDispatchKeyGuard off{c10::DispatchKeySet(kKey)};
  at::ScalarType type = at::autocast::get_autocast_dtype(device);

  Tensor operator()(const Tensor& x) const { return at::autocast::cached_cast(type, x, device); }

  static Tensor linear(const Tensor& x, const Tensor& weight) {
    const Autocast cast;
    return ops::linear(cast(x), cast(weight));
  }
  static RouteResult route(const Tensor& x, const Tensor& weight, at::TensorList history,
                           at::TensorList sumsq, double depth_factor, double eps, bool scale) {
    const Autocast cast;
    return route_list(cast(x), cast(weight), history, sumsq, depth_factor, eps, scale);
  }
  static Tensor history_logits(const Tensor& x, const Tensor& weight, at::TensorList history,
                               at::TensorList sumsq, double depth_factor, double eps, bool scale) {
    const Autocast cast;
    return ops::history_logits(cast(x), cast(weight), history, sumsq, depth_factor, eps, scale);
  }
  static Tensor experts(const Tensor& x, const Tensor& gate_up, const Tensor& down, const Tensor& offsets) {
    const Autocast cast;
    return experts_public(cast(x), cast(gate_up), cast(down), offsets);
  }
  static Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets) {
    const Autocast cast;
    return ops::linear_cross_entropy(cast(x), cast(weight), targets);
  }
  static void add(torch::Library& m) {
    m.impl("linear", linear);
    m.impl("route", route);
    m.impl("history_logits", history_logits);
    m.impl("experts", experts);
    m.impl("linear_cross_entropy", linear_cross_entropy);
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(hero, AutocastCPU, m) { Autocast<c10::kCPU>::add(m); }
TORCH_LIBRARY_IMPL(hero, AutocastCUDA, m) { Autocast<c10::kCUDA>::add(m); }

}  // namespace hero::ops
