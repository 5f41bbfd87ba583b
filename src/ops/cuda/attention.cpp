// Causal attention on CUDA by cuDNN (through its header-only frontend): training shapes in bf16 and fp16.
// Unlike PyTorch's attention it takes values narrower than the keys without padding, and its backward pass is
// deterministic, at S^2 gradients of scores per head: sequences and heads are processed in parts that bound
// them.
#include <ATen/cudnn/Handle.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <cudnn_frontend.h>
#include <torch/library.h>

#include <bit>
#include <map>
#include <memory>
#include <mutex>

#include "ops/cuda/attention_parts.h"
#include "ops/reference.h"

namespace hero::ops {
namespace {

namespace fe = cudnn_frontend;
using cuda::AttentionParts;

// Lengths of training sequences: every length has its own plan, which takes long to make, so prompts of any
// length use PyTorch's kernels.
constexpr int64_t kLengthMultiple = 64, kMinLength = 128;

enum Uid : int64_t { kQ = 1, kK, kV, kOut, kLse, kDout, kDq, kDk, kDv };

std::shared_ptr<fe::graph::Graph> new_graph(at::ScalarType type) {
  auto graph = std::make_shared<fe::graph::Graph>();
  graph->set_io_data_type(type == at::kBFloat16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  return graph;
}

std::shared_ptr<fe::graph::Tensor_attributes> add_input(fe::graph::Graph& graph, Uid uid, const at::Tensor& x,
                                                        at::IntArrayRef sizes) {
  return graph.tensor(
      fe::graph::Tensor_attributes()
          .set_uid(uid)
          .set_dim(sizes.vec())
          .set_stride(x.strides().vec())
          .set_data_type(x.scalar_type() == at::kFloat ? fe::DataType_t::FLOAT : fe::DataType_t::NOT_SET));
}

void set_output(fe::graph::Tensor_attributes& attributes, Uid uid, const at::Tensor& x,
                at::IntArrayRef sizes) {
  attributes.set_output(true).set_uid(uid).set_dim(sizes.vec()).set_stride(x.strides().vec());
  if (x.scalar_type() == at::kFloat) attributes.set_data_type(fe::DataType_t::FLOAT);
}

// [B, H, S, width] view of new memory [B, S, H, width], for x [B, H, S, .].
at::Tensor empty_rows(const at::Tensor& x, int64_t width) {
  return at::empty({x.size(0), x.size(2), x.size(1), width}, x.options()).transpose(1, 2);
}
at::Tensor empty_rows(const at::Tensor& x) { return empty_rows(x, x.size(3)); }

at::Tensor empty_lse(const at::Tensor& q) {
  return at::empty({q.size(0), q.size(1), q.size(2), 1}, q.options().dtype(at::kFloat));
}

// The plans of one shape. Null: cuDNN does not support it.
struct Plans {
  std::shared_ptr<fe::graph::Graph> forward, backward;
  AttentionParts parts;
};

bool build(fe::graph::Graph& graph) {
  return graph.build(at::native::getCudnnHandle(), {fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}).is_good();
}

Plans make_plans(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale) {
  Plans plans;
  const auto parts = cuda::attention_parts(q.size(0), q.size(1), k.size(1), q.size(2));
  if (!parts) return plans;
  plans.parts = *parts;
  const auto out = empty_rows(q, v.size(3)), lse = empty_lse(q);

  auto forward = new_graph(q.scalar_type());
  auto [o, stats] = forward->sdpa(
      add_input(*forward, kQ, q, q.sizes()), add_input(*forward, kK, k, k.sizes()),
      add_input(*forward, kV, v, v.sizes()),
      fe::graph::SDPA_attributes().set_generate_stats(true).set_causal_mask(true).set_attn_scale(
          static_cast<float>(scale)));
  set_output(*o, kOut, out, out.sizes());
  set_output(*stats, kLse, lse, lse.sizes());
  if (!build(*forward)) return plans;

  const auto part = [&](const at::Tensor& x) { return plans.parts.sizes(x.sizes(), k.size(1)); };
  auto backward = new_graph(q.scalar_type());
  auto [dq, dk, dv] = backward->sdpa_backward(
      add_input(*backward, kQ, q, part(q)), add_input(*backward, kK, k, part(k)),
      add_input(*backward, kV, v, part(v)), add_input(*backward, kOut, out, part(out)),
      add_input(*backward, kDout, out, part(out)), add_input(*backward, kLse, lse, part(lse)),
      fe::graph::SDPA_backward_attributes()
          .set_causal_mask(true)
          .set_attn_scale(static_cast<float>(scale))
          .set_deterministic_algorithm(true));
  set_output(*dq, kDq, empty_rows(q), part(q));
  set_output(*dk, kDk, empty_rows(k), part(k));
  set_output(*dv, kDv, empty_rows(v), part(v));
  if (!build(*backward)) return plans;
  plans.forward = std::move(forward);
  plans.backward = std::move(backward);
  return plans;
}

// Made once per device, type, shape, strides and scale.
const Plans& plans_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale) {
  static std::mutex mutex;
  static std::map<std::vector<int64_t>, Plans> made;
  std::vector<int64_t> key = {q.device().index(), static_cast<int64_t>(q.scalar_type()),
                              std::bit_cast<int64_t>(scale)};
  for (const auto* x : {&q, &k, &v}) {
    key.insert(key.end(), x->sizes().begin(), x->sizes().end());
    key.insert(key.end(), x->strides().begin(), x->strides().end());
  }
  const std::scoped_lock lock(mutex);
  const auto found = made.find(key);
  if (found != made.end()) return found->second;
  return made.emplace(std::move(key), make_plans(q, k, v, scale)).first->second;
}

void execute(const fe::graph::Graph& graph, const std::vector<std::pair<Uid, at::Tensor>>& tensors,
             const at::Tensor& workspace) {
  std::unordered_map<int64_t, void*> pointers;
  for (const auto& [uid, tensor] : tensors) pointers[uid] = const_cast<void*>(tensor.const_data_ptr());
  auto status = graph.execute(at::native::getCudnnHandle(), pointers, workspace.data_ptr());
  TORCH_CHECK(status.is_good(), "attention: cuDNN: ", status.get_message());
}

at::Tensor workspace_of(const fe::graph::Graph& graph, const at::Tensor& like) {
  return at::empty({graph.get_workspace_size()}, like.options().dtype(at::kByte));
}

bool whole_vectors(const at::Tensor& x) {
  for (int64_t dim = 0; dim < 3; ++dim) {
    if (x.stride(dim) % 8 != 0) return false;
  }
  return x.stride(3) == 1 && x.size(3) % 8 == 0 && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
}

// Null if cuDNN does not compute this shape.
const Plans* find_plans(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale) {
  const int64_t length = q.size(2);
  if (!at::isReducedFloatingType(q.scalar_type()) || k.size(2) != length || length < kMinLength ||
      length % kLengthMultiple != 0 || !whole_vectors(q) || !whole_vectors(k) || !whole_vectors(v))
    return nullptr;
  const c10::cuda::CUDAGuard guard(q.device());
  const auto& plans = plans_of(q, k, v, scale);
  return plans.backward ? &plans : nullptr;
}

bool is_fused(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale) {
  return find_plans(q, k, v, scale) != nullptr;
}

std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                           double scale, const std::optional<at::Tensor>& starts) {
  const auto* plans = starts ? nullptr : find_plans(q, k, v, scale);
  if (!plans) return attention_forward_reference(q, k, v, scale, starts);
  const c10::cuda::CUDAGuard guard(q.device());
  auto out = empty_rows(q, v.size(3)), lse = empty_lse(q);
  execute(*plans->forward, {{kQ, q}, {kK, k}, {kV, v}, {kOut, out}, {kLse, lse}},
          workspace_of(*plans->forward, q));
  return {out.transpose(1, 2), lse.squeeze(3)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& dout, const at::Tensor& q,
                                                        const at::Tensor& k, const at::Tensor& v,
                                                        const at::Tensor& out, const at::Tensor& lse,
                                                        double scale,
                                                        const std::optional<at::Tensor>& starts) {
  const auto* plans = starts ? nullptr : find_plans(q, k, v, scale);
  if (!plans) return attention_backward_reference(dout, q, k, v, out, lse, scale, starts);
  const c10::cuda::CUDAGuard guard(q.device());
  const auto dout_H = dout.transpose(1, 2), out_H = out.transpose(1, 2), lse_H = lse.unsqueeze(3);
  auto dq = empty_rows(q), dk = empty_rows(k), dv = empty_rows(v);
  const auto workspace = workspace_of(*plans->backward, q);
  for (int64_t b = 0; b < q.size(0); b += plans->parts.sequences) {
    for (int64_t h = 0; h < k.size(1); h += plans->parts.kv_heads) {
      const auto part = [&](const at::Tensor& x) { return plans->parts.of(x, k.size(1), b, h); };
      execute(*plans->backward,
              {{kQ, part(q)},
               {kK, part(k)},
               {kV, part(v)},
               {kOut, part(out_H)},
               {kDout, part(dout_H)},
               {kLse, part(lse_H)},
               {kDq, part(dq)},
               {kDk, part(dk)},
               {kDv, part(dv)}},
              workspace);
    }
  }
  return {dq, dk, dv};
}

}  // namespace

TORCH_LIBRARY_IMPL(hero, CUDA, m) {
  m.impl("attention_is_fused", is_fused);
  m.impl("attention_forward", forward);
  m.impl("attention_backward", backward);
}

}  // namespace hero::ops
