#include "model/recompute.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "ops/autograd.h"
#include "ops/deferred.h"

namespace hero {
namespace {

std::vector<at::Tensor> differentiable_outputs(const DecoderLayer::Output& out) {
  if (!out.routing) return {out.x};
  return {out.x, out.routing->logits, out.routing->probs};
}

}  // namespace

DecoderLayer::Output recompute_layer(const DecoderLayer& layer, const at::Tensor& x,
                                     const RotaryTable& rotary,
                                     const std::shared_ptr<RoutingHistory>& history,
                                     const ForwardContext& context) {
  if (!x.requires_grad() && !layer.is_trainable()) return layer(x, rotary, *history, context, nullptr);
  // The layer outlives the step; the history belongs to the micro-batch.
  const auto run = [&layer, rotary, history, context,
                    queue = ops::DeferWeightGradients::queue()](const at::Tensor& input) {
    const ops::DeferWeightGradients defer(queue);
    return layer(input, rotary, *history, context, nullptr);
  };
  const auto backward = [run, needs_dx = x.requires_grad()](
                            const std::vector<at::Tensor>& saved,
                            const std::vector<at::Tensor>& gradients) -> std::vector<at::Tensor> {
    const auto input = saved[0].detach().set_requires_grad(needs_dx);
    {
      const at::AutoGradMode with_grad(true);
      ops::backward(differentiable_outputs(run(input)), gradients);
    }
    return {input.grad(), at::Tensor()};
  };
  DecoderLayer::Output out;
  {
    const at::NoGradGuard no_grad;
    out = run(x);
  }
  // The anchor requires a gradient, so that the outputs do too even if x does not.
  const auto anchor = at::zeros({}).set_requires_grad(true);
  const auto outputs = ops::with_backward(differentiable_outputs(out), {x, anchor}, {x}, backward);
  out.x = outputs[0];
  if (out.routing) {
    out.routing->logits = outputs[1];
    out.routing->probs = outputs[2];
  }
  return out;
}

}  // namespace hero
