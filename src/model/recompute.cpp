#include "model/recompute.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/deferred.h"

namespace hero {
namespace {

// Inputs of the recomputation besides x. The layer outlives the step; the history belongs to the micro-batch.
struct Recomputation {
  const DecoderLayer* layer;
  RotaryTable rotary;
  std::shared_ptr<RoutingHistory> history;
  ForwardContext context;
  ops::WeightGradientQueue* queue;  // active in the first pass
  std::optional<Routing> routing;   // of the first pass

  DecoderLayer::Output run(const at::Tensor& x) const {
    const ops::DeferWeightGradients defer(queue);
    return (*layer)(x, rotary, *history, context, nullptr);
  }
};

struct Holder : torch::CustomClassHolder {
  explicit Holder(std::shared_ptr<Recomputation> r) : recomputation(std::move(r)) {}
  std::shared_ptr<Recomputation> recomputation;
};

struct Recompute : torch::autograd::Function<Recompute> {
  // `weight_anchor` requires a gradient, so that the outputs do too even if x does not.
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                                                const at::Tensor& weight_anchor,
                                                const std::shared_ptr<Recomputation>& recomputation) {
    (void)weight_anchor;
    at::NoGradGuard no_grad;
    auto out = recomputation->run(x);
    ctx->save_for_backward({x});
    ctx->saved_data["recomputation"] = c10::IValue::make_capsule(c10::make_intrusive<Holder>(recomputation));
    if (!out.routing) return {out.x};
    recomputation->routing = out.routing;
    return {out.x, out.routing->logits, out.routing->probs};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto& recomputation =
        static_cast<Holder&>(*ctx->saved_data["recomputation"].toCapsule()).recomputation;
    const auto x = ctx->get_saved_variables()[0].detach().set_requires_grad(true);
    {
      at::AutoGradMode with_grad(true);
      const auto out = recomputation->run(x);
      torch::autograd::variable_list outputs = {out.x};
      if (out.routing) outputs.insert(outputs.end(), {out.routing->logits, out.routing->probs});
      torch::autograd::backward(outputs, grads);
    }
    return {x.grad(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

DecoderLayer::Output recompute_layer(const DecoderLayer& layer, const at::Tensor& x,
                                     const RotaryTable& rotary,
                                     const std::shared_ptr<RoutingHistory>& history,
                                     const ForwardContext& context) {
  auto recomputation = std::make_shared<Recomputation>(
      Recomputation{&layer, rotary, history, context, ops::DeferWeightGradients::queue(), {}});
  const auto out = Recompute::apply(x, at::zeros({}).set_requires_grad(true), recomputation);
  if (out.size() == 1) return {out[0], std::nullopt};
  auto routing = *recomputation->routing;
  recomputation->routing.reset();
  routing.logits = out[1];
  routing.probs = out[2];
  return {out[0], routing};
}

}  // namespace hero
