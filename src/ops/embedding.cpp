// Embedding lookup. The weight gradient accumulates in fp32, each row on one thread in token order.
#include <ATen/ATen.h>

#include "ops/differentiable.h"
#include "ops/ops.h"
#include "ops/registry.h"

namespace hero::ops {
namespace {

struct Embedding : torch::autograd::Function<Embedding> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& ids,
                            const at::Tensor& w) {
    if (ctx) {
      ctx->save_for_backward({ids});
      ctx->saved_data["rows"] = w.sym_size(0);
    }
    return at::embedding(w, ids);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto ids = ctx->get_saved_variables()[0];
    const auto dy = grads[0].to(accumulation_type(grads[0].scalar_type()));
    return {{}, at::embedding_dense_backward_symint(dy, ids, ctx->saved_data["rows"].toSymInt(), -1, false)};
  }
};

}  // namespace

at::Tensor embedding(const at::Tensor& ids, const at::Tensor& w_VD) {
  TORCH_CHECK(ids.scalar_type() == at::kLong, "embedding: ids must be int64, got ", ids.scalar_type());
  TORCH_CHECK(w_VD.dim() == 2, "embedding: w must be [V, D], got ", w_VD.sym_sizes());
  return differentiable<Embedding>(ids, w_VD);
}

}  // namespace hero::ops
