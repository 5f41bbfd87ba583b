#include "model/recompute.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/deferred.h"

namespace hero {
namespace {

// Everything a replay needs besides x. The layer outlives the step; the history belongs to the micro-batch.
struct Replay {
  const DecoderLayer* layer;
  RotaryTable rotary;
  std::shared_ptr<RoutingHistory> history;
  Position position;
  ops::WeightGradients* queue;     // in force in the first pass
  std::optional<Routing> routing;  // of the first pass

  DecoderLayer::Output run(const at::Tensor& x) const {
    const ops::DeferWeightGradients defer(queue);
    return (*layer)(x, rotary, *history, position, nullptr);
  }
};

struct Holder : torch::CustomClassHolder {
  explicit Holder(std::shared_ptr<Replay> r) : replay(std::move(r)) {}
  std::shared_ptr<Replay> replay;
};

struct Recompute : torch::autograd::Function<Recompute> {
  // `weight_anchor` requires a gradient: it makes the outputs part of the graph even where x does not.
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                                                const at::Tensor& weight_anchor,
                                                const std::shared_ptr<Replay>& replay) {
    (void)weight_anchor;
    at::NoGradGuard no_grad;
    auto out = replay->run(x);
    ctx->save_for_backward({x});
    ctx->saved_data["replay"] = c10::IValue::make_capsule(c10::make_intrusive<Holder>(replay));
    if (!out.routing) return {out.x};
    replay->routing = out.routing;
    return {out.x, out.routing->logits, out.routing->probs};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto& replay = static_cast<Holder&>(*ctx->saved_data["replay"].toCapsule()).replay;
    const auto x = ctx->get_saved_variables()[0].detach().set_requires_grad(true);
    {
      at::AutoGradMode with_grad(true);
      const auto out = replay->run(x);
      torch::autograd::variable_list outputs = {out.x};
      if (out.routing) outputs.insert(outputs.end(), {out.routing->logits, out.routing->probs});
      torch::autograd::backward(outputs, grads);
    }
    return {x.grad(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

DecoderLayer::Output recomputed(const DecoderLayer& layer, const at::Tensor& x, const RotaryTable& rotary,
                                const std::shared_ptr<RoutingHistory>& history, const Position& position) {
  auto replay = std::make_shared<Replay>(
      Replay{&layer, rotary, history, position, ops::DeferWeightGradients::queue(), {}});
  const auto out = Recompute::apply(x, at::zeros({}).set_requires_grad(true), replay);
  if (out.size() == 1) return {out[0], std::nullopt};
  auto routing = *replay->routing;
  replay->routing.reset();
  routing.logits = out[1];
  routing.probs = out[2];
  return {out[0], routing};
}

}  // namespace hero
