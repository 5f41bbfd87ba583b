#include "model/moe.h"

#include <ATen/ATen.h>

#include "model/random.h"
#include "model/row_exchange.h"

namespace hero {
namespace {

// x * U(1-jitter, 1+jitter), the same number for a token of a step in every layout (Switch Transformer,
// section 2.2).
at::Tensor jittered(const at::Tensor& x_TD, double jitter, int64_t layer, const Position& position) {
  // Drawn on the CPU, in memory that a GPU copies from while this thread goes on.
  auto noise = at::empty(x_TD.sizes(), at::TensorOptions(at::kFloat).pinned_memory(x_TD.is_cuda()));
  const std::string name = "jitter/" + std::to_string(position.step) + "/" + std::to_string(layer) + "/";
  for (int64_t t = 0; t < x_TD.size(0); ++t) {
    fill_uniform(noise[t], position.seed, name + std::to_string(position.first_token + t), 1.0 - jitter,
                 1.0 + jitter);
  }
  return x_TD * noise.to(x_TD.device(), /*non_blocking=*/true).to(x_TD.scalar_type());
}

// The plan that brings rows back into the order they had before `plan`, of one assignment each.
ops::Plan inverse(const ops::Plan& plan) {
  return {plan.counts, plan.offsets, plan.row.flatten(), plan.token.unsqueeze(1)};
}

}  // namespace

Moe::Moe(Parameters& parameters, const std::string& prefix, int64_t l, const Config& config,
         const HistoryLayout& layout, const ModelPart& part)
    : model_(config.model),
      config_(config.router),
      expert_group_(part.expert_group),
      router_(parameters, prefix, l, config, layout) {
  const int64_t e = part.experts, d = model_.hidden_size, f = model_.moe_intermediate_size;
  const auto init = normal_init(model_.initializer_range);
  std::vector<ParameterPart> gate_up, down;
  for (int64_t i = 0; i < e; ++i) {
    const std::string expert = prefix + ".experts." + std::to_string(part.first_expert + i);
    gate_up.push_back({expert + ".gate_proj.weight", {f, d}, init});
    gate_up.push_back({expert + ".up_proj.weight", {f, d}, init});
    down.push_back({expert + ".down_proj.weight", {d, f}, init});
  }
  gate_up_ =
      parameters.add(prefix + ".experts.gate_up_proj", {e, 2 * f, d}, std::move(gate_up), /*decay=*/true);
  parameters.mark_expert();
  down_ = parameters.add(prefix + ".experts.down_proj", {e, d, f}, std::move(down), true);
  parameters.mark_expert();
  if (model_.model_type == "deepseek_v3")
    bias_ = parameters.add_buffer(prefix + ".gate.e_score_correction_bias", {model_.num_experts});
  if (model_.n_shared_experts > 0) {
    shared_.emplace(parameters, prefix + ".shared_experts", d, model_.n_shared_experts * f,
                    model_.initializer_range);
  }
}

Moe::Computed Moe::compute(const at::Tensor& x_TD, const ops::Plan& plan) const {
  const auto rows = ops::permute(x_TD, plan);
  if (!expert_group_) return {ops::experts(rows, gate_up_, down_, plan), shared(x_TD)};
  // The shared experts work while rows travel.
  RowExchange exchange(*expert_group_, rows, plan.counts);
  auto shared_TD = shared(x_TD);
  const auto arrived = exchange.arrive();
  const auto local = ops::plan(exchange.expert_of_row(), gate_up_.size(0));
  const auto sorted = ops::experts(ops::permute(arrived, local), gate_up_, down_, local);
  return {exchange.go_back(ops::permute(sorted, inverse(local))), shared_TD};
}

Moe::Output Moe::operator()(const at::Tensor& x_TD, RoutingHistory& history, const Position& position,
                            const at::Tensor& residual_TD) const {
  const bool jitter = position.training && config_.jitter > 0;
  const auto routed =
      router_(jitter ? jittered(x_TD, config_.jitter, router_.layer(), position) : x_TD, history);
  const double capacity = position.training ? config_.capacity_factor : config_.eval_capacity_factor;
  const auto choice =
      sparse_route(routed.logits, routed.probs, bias_, model_, config_, router_.layer(), capacity);
  const auto plan = ops::plan(choice.kept, model_.num_experts);
  const auto computed = compute(x_TD, plan);
  auto base = residual_TD;
  if (computed.shared_TD.defined()) base = base.defined() ? base + computed.shared_TD : computed.shared_TD;
  const auto y = ops::combine(computed.rows_ND, choice.weights, plan, base);
  const bool dropless = capacity <= 0;
  return {y, Routing{.layer = router_.layer(),
                     .logits = routed.logits,
                     .probs = routed.probs,
                     .stats = routed.stats,
                     .ids = choice.ids,
                     .weights = choice.weights.detach(),
                     .assigned = dropless ? plan.counts : count_assignments(choice.ids, model_.num_experts),
                     .counts = plan.counts}};
}

}  // namespace hero
