#include "ops/bench_ops.h"
#include "ops/cases.h"
#include "ops/reference.h"

namespace hero::bench {
namespace {

void add_route(const test::RouteCase& c) {
  const int64_t columns = c.width + c.visible * c.experts, own = (c.slots - 1) * c.experts;
  const auto x = random({c.tokens, c.width}), w = random({c.experts, columns}, 0.05);
  const auto probs = random({c.tokens, c.slots, c.experts}).softmax(-1);
  const auto buffer = probs.flatten(1).contiguous(), squares = probs.to(at::kFloat).square().sum(-1);
  const auto slot = std::optional(buffer.slice(1, own)),
             slot_squares = std::optional(squares.select(1, c.slots - 1));
  std::optional<at::Tensor> history, sumsq;
  if (c.visible > 0) {
    history = buffer.slice(1, own - c.visible * c.experts, own);
    sumsq = squares.slice(1, c.slots - 1 - c.visible, c.slots - 1);
  }
  const auto dlogits = wide({c.tokens, c.experts}), dprobs = wide({c.tokens, c.experts});
  add("route/T" + std::to_string(c.tokens) + "_D" + std::to_string(c.width) + "_E" +
          std::to_string(c.experts) + "_M" + std::to_string(c.visible),
      [=, scale = c.scale](bool reference) {
        const auto [z, p, stats] = call(reference, "hero::route_forward", ops::route_forward_reference, x, w,
                                        history, sumsq, 1.0, 1e-6, scale, slot, slot_squares);
        const auto [dx, dz] =
            call(reference, "hero::route_backward_input", ops::route_backward_input_reference, dlogits,
                 dprobs, p, x, w, history, stats);
        call(reference, "hero::route_backward_weight", ops::route_backward_weight_reference, dz, x, history);
      });
}

void add_top_experts(const test::TopExpertsCase& c) {
  const auto scores = uniform({c.tokens, c.experts}), dweights = wide({c.tokens, c.k});
  const auto bias = c.biased ? std::optional(uniform({c.experts})) : std::nullopt;
  const at::Tensor ids = ops::top_experts_reference(scores, bias, c.k, c.groups, c.kept_groups);
  const std::string shape = "T" + std::to_string(c.tokens) + "_E" + std::to_string(c.experts) + "_K" +
                            std::to_string(c.k) + "_G" + std::to_string(c.groups);
  add("top_experts/" + shape, [=](bool reference) {
    call(reference, "hero::top_experts", ops::top_experts_reference, scores, bias, c.k, c.groups,
         c.kept_groups);
  });
  add("expert_weights/" + shape, [=](bool reference) {
    call(reference, "hero::expert_weights", ops::expert_weights_reference, scores, ids, true, 1e-20, 1.0);
    call(reference, "hero::expert_weights_backward", ops::expert_weights_backward_reference, dweights, scores,
         ids, true, 1e-20, 1.0);
  });
}

void add_experts(const test::ExpertsCase& c) {
  const std::string shape = "T" + std::to_string(c.tokens) + "_D" + std::to_string(c.width) + "_F" +
                            std::to_string(c.inner) + "_E" + std::to_string(c.experts) + "_K" +
                            std::to_string(c.k);
  const auto ids = std::get<1>(uniform({c.tokens, c.experts}).topk(c.k, 1));
  const auto planned = ops::plan_reference(ids, c.experts);
  const at::Tensor offsets = std::get<1>(planned), token = std::get<2>(planned), row = std::get<3>(planned);
  const int64_t rows = token.size(0);
  const auto x_N = random({rows, c.width}), dy_N = random({rows, c.width}), x_T = random({c.tokens, c.width});
  const auto gate_up = random({c.experts, 2 * c.inner, c.width}, 0.1),
             down = random({c.experts, c.width, c.inner}, 0.1);
  const auto weights = uniform({c.tokens, c.k});

  add("experts/" + shape, [=](bool reference) {
    const auto [y, h] =
        call(reference, "hero::experts_forward", ops::experts_forward_reference, x_N, gate_up, down, offsets);
    call(reference, "hero::experts_backward", ops::experts_backward_reference, dy_N, x_N, h, gate_up, down,
         offsets);
  });
  // The backward pass as one operator, and split, as with deferred weight gradients.
  const at::Tensor h = std::get<1>(
      call(false, "hero::experts_forward", ops::experts_forward_reference, x_N, gate_up, down, offsets));
  add("experts_backward/" + shape, [=](bool reference) {
    call(reference, "hero::experts_backward", ops::experts_backward_reference, dy_N, x_N, h, gate_up, down,
         offsets);
  });
  add("experts_backward_apart/" + shape, [=](bool reference) {
    const auto [dx, dh, act] = call(reference, "hero::experts_backward_input",
                                    ops::experts_backward_input_reference, dy_N, h, gate_up, down, offsets);
    call(reference, "hero::experts_backward_weight", ops::experts_backward_weight_reference, dh, x_N,
         offsets);
    call(reference, "hero::experts_backward_weight", ops::experts_backward_weight_reference, dy_N, act,
         offsets);
  });
  add("plan/" + shape, [=, experts = c.experts](bool reference) {
    call(reference, "hero::plan_assignments", ops::plan_reference, ids, experts);
  });
  add("permute/" + shape, [=](bool reference) {
    call(reference, "hero::gather_rows", ops::gather_rows_reference, x_T, token);
    call(reference, "hero::sum_rows", ops::sum_rows_reference, dy_N, std::nullopt, row, std::nullopt);
  });
  add("combine/" + shape, [=](bool reference) {
    call(reference, "hero::sum_rows", ops::sum_rows_reference, x_N, std::optional(weights), row,
         std::optional(x_T));
    call(reference, "hero::combine_backward", ops::combine_backward_reference, x_T, x_N, weights, row, token);
  });
}

}  // namespace

void add_routed() {
  for (const auto& c : test::kRouteCases)
    if (c.timed) add_route(c);
  for (const auto& c : test::kTopExpertsCases)
    if (c.timed) add_top_experts(c);
  for (const auto& c : test::kExpertsCases)
    if (c.timed) add_experts(c);
}

}  // namespace hero::bench
