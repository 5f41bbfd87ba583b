#include "model/moe.h"

#include <ATen/ATen.h>

#include "model/random.h"
#include "model/token_dispatcher.h"

namespace hero {
namespace {

// x * U(1-jitter, 1+jitter) (Switch Transformer, section 2.2). The noise depends on the step and the global
// token index, not on the parallel layout.
at::Tensor jittered(const at::Tensor& x_TD, double jitter, int64_t layer, const ForwardContext& context) {
  // Sampled on the CPU, in pinned memory for an asynchronous copy.
  auto noise = at::empty(x_TD.sizes(), at::TensorOptions(at::kFloat).pinned_memory(x_TD.is_cuda()));
  const std::string name = "jitter/" + std::to_string(context.step) + "/" + std::to_string(layer) + "/";
  for (int64_t t = 0; t < x_TD.size(0); ++t) {
    fill_uniform(noise[t], context.seed, name + std::to_string(context.first_token + t), 1.0 - jitter,
                 1.0 + jitter);
  }
  return x_TD * noise.to(x_TD.device(), /*non_blocking=*/true).to(x_TD.scalar_type());
}

// The plan that restores the order of rows before `plan`, which has one assignment per row.
ops::Plan inverse(const ops::Plan& plan) {
  return {plan.counts, plan.offsets, plan.row.flatten(), plan.token.unsqueeze(1)};
}

}  // namespace

Moe::Moe(Parameters& parameters, const std::string& prefix, int64_t l, const Config& config,
         const HistoryLayout& layout, const ModelShard& shard)
    : model_(config.model),
      config_(config.router),
      inference_config_(config.router),
      expert_group_(shard.expert_group),
      router_(parameters, prefix, l, config, layout) {
  inference_config_.force_balance = false;
  const int64_t e = shard.experts, d = model_.hidden_size, f = model_.moe_intermediate_size;
  const auto init = normal_init(model_.initializer_range);
  const ExpertNames& names = model_.type().expert;
  std::vector<ParameterPart> gate_up, down;
  for (int64_t i = 0; i < e; ++i) {
    const std::string expert = prefix + ".experts." + std::to_string(shard.first_expert + i) + ".";
    const auto name = [&](std::string_view matrix) { return expert + std::string(matrix) + ".weight"; };
    gate_up.push_back({name(names.gate), {f, d}, init});
    gate_up.push_back({name(names.up), {f, d}, init});
    down.push_back({name(names.down), {d, f}, init});
  }
  gate_up_ =
      parameters.add(prefix + ".experts.gate_up_proj", {e, 2 * f, d}, std::move(gate_up), /*decay=*/true);
  parameters.mark_expert();
  down_ = parameters.add(prefix + ".experts.down_proj", {e, d, f}, std::move(down), true);
  parameters.mark_expert();
  if (model_.is_deepseek())
    bias_ = parameters.add_buffer(prefix + ".gate.e_score_correction_bias", {model_.num_experts});
  if (model_.n_shared_experts > 0) {
    shared_.emplace(parameters, prefix + ".shared_experts", d, model_.n_shared_experts * f,
                    model_.initializer_range);
  }
}

Moe::ExpertOutput Moe::run_experts(const at::Tensor& x_TD, const ops::Plan& plan) const {
  const auto rows = ops::permute(x_TD, plan);
  if (!expert_group_) return {ops::experts(rows, gate_up_, down_, plan), shared(x_TD)};
  // The shared experts overlap with the all-to-all.
  TokenDispatcher dispatcher(*expert_group_, rows, plan.counts);
  auto shared_TD = shared(x_TD);
  const auto received = dispatcher.finish_dispatch();
  const auto local = ops::plan(dispatcher.local_expert_ids(), gate_up_.size(0));
  const auto sorted = ops::experts(ops::permute(received, local), gate_up_, down_, local);
  return {dispatcher.combine(ops::permute(sorted, inverse(local))), shared_TD};
}

Moe::Output Moe::operator()(const at::Tensor& x_TD, RoutingHistory& history, const ForwardContext& context,
                            const at::Tensor& residual_TD) const {
  const bool jitter = context.training && config_.jitter > 0;
  const auto routed =
      router_(jitter ? jittered(x_TD, config_.jitter, router_.layer(), context) : x_TD, history);
  const auto& config = context.training ? config_ : inference_config_;
  const double capacity = context.training ? config.capacity_factor : config.eval_capacity_factor;
  const auto selection =
      sparse_route(routed.logits, routed.probs, bias_, model_, config, router_.layer(), capacity);
  const auto plan = ops::plan(selection.kept, model_.num_experts);
  const auto out = run_experts(x_TD, plan);
  auto base = residual_TD;
  if (out.shared_TD.defined()) base = base.defined() ? base + out.shared_TD : out.shared_TD;
  const auto y = ops::combine(out.rows_ND, selection.weights, plan, base);
  const bool dropless = capacity <= 0;
  return {y,
          Routing{.layer = router_.layer(),
                  .logits = routed.logits,
                  .probs = routed.probs,
                  .stats = routed.stats,
                  .ids = selection.ids,
                  .weights = selection.weights.detach(),
                  .assigned = dropless ? plan.counts : count_assignments(selection.ids, model_.num_experts),
                  .counts = plan.counts}};
}

}  // namespace hero
