#include "config/warnings.h"

#include <algorithm>
#include <cstdio>
#include <variant>

#include "config/data_phases.h"
#include "config/fields.h"
#include "config/mtp_layers.h"
#include "config/router_kinds.h"

namespace hero {
namespace {

class Unused {
 public:
  explicit Unused(const Config& config)
      : config_(config), fields_(fields(config_)), default_fields_(fields(defaults_)) {}

  /// Warns about non-default options `keys` unless `used`; `why` names the option that disables them.
  void unless(bool used, const std::vector<std::string>& keys, const std::string& why) {
    if (used) return;
    for (const std::string& key : keys) {
      const FieldValue value = read(*find_field(fields_, key));
      if (value == read(*find_field(default_fields_, key))) continue;
      lines_.push_back(format_option(key, value) + " has no effect: " + why);
    }
  }

  void add(std::string line) { lines_.push_back(std::move(line)); }

  std::vector<std::string> lines() && { return std::move(lines_); }

 private:
  Config config_, defaults_;
  std::vector<Field> fields_, default_fields_;
  std::vector<std::string> lines_;
};

// Whether all expert weights are the same number: they are normalized, and each token has one.
bool has_equal_expert_weights(const ModelConfig& m) {
  return m.norm_topk_prob && m.num_experts_per_tok == 1 && m.norm_topk_eps <= ModelConfig().norm_topk_eps;
}

std::string equal_expert_weights(const ModelConfig& m) {
  return format_option("model.num_experts_per_tok", m.num_experts_per_tok) + " and " +
         format_option("model.norm_topk_prob", m.norm_topk_prob) + ": all expert weights are equal";
}

// check() rejects some of the options that another architecture or a run without a pipeline does not read;
// those have their defaults here.
void add_model(Unused& unused, const ModelConfig& m) {
  const bool deepseek = m.is_deepseek();
  const auto family = format_option("model.model_type", name_of(m.model_type));
  auto grouped = keys_with(kGroupedQueryOnly);
  std::erase(grouped, "model.num_key_value_heads");
  unused.unless(!deepseek, grouped, family);
  unused.unless(!deepseek || m.num_key_value_heads == m.num_attention_heads, {"model.num_key_value_heads"},
                family + " has as many key heads as model.num_attention_heads");
  unused.unless(deepseek, keys_with(kDeepseekOnly), family);
  unused.unless(m.type().has_dense_layers, {"model.intermediate_size"}, family + " has no dense layers");
  unused.unless(m.norm_topk_prob, {"model.norm_topk_eps"},
                format_option("model.norm_topk_prob", m.norm_topk_prob));
  ModelConfig without_list = m;
  without_list.mlp_only_layers.clear();
  unused.unless(
      moe_layer_numbers(m) != moe_layer_numbers(without_list), {"model.mlp_only_layers"},
      format_option("model.decoder_sparse_step", m.decoder_sparse_step) + " makes these layers dense");
  unused.unless(m.topk_group < m.n_group, {"model.n_group", "model.topk_group"},
                "all groups of experts are selected");
  if (has_equal_expert_weights(m))
    unused.add(equal_expert_weights(m) + ", so routers learn only from auxiliary losses");
  const RopeScaling& y = m.rope_scaling;
  unused.unless(y.is_yarn(), keys_with(kYarnOnly), format_option("model.rope_scaling.type", name_of(y.type)));
  if (!y.is_yarn()) return;
  const bool direct = y.attention_factor > 0;
  if (y.factor == 1) {
    auto scaling = keys_with(kYarnOnly);
    std::erase(scaling, "model.rope_scaling.attention_factor");
    if (!direct) scaling.push_back("model.rope_scaling.type");
    return unused.unless(false, scaling, format_option("model.rope_scaling.factor", y.factor));
  }
  const auto factor = format_option("model.rope_scaling.attention_factor", y.attention_factor);
  unused.unless(!direct, {"model.rope_scaling.mscale"}, factor);
  unused.unless(direct || y.mscale_all_dim > 0, {"model.rope_scaling.mscale"},
                format_option("model.rope_scaling.mscale_all_dim", y.mscale_all_dim));
  unused.unless(deepseek || (!direct && y.mscale > 0), {"model.rope_scaling.mscale_all_dim"},
                family + " and " + (direct ? factor : format_option("model.rope_scaling.mscale", y.mscale)));
}

// The largest number of earlier MoE layers that a layer, those of the modules included, may read without a
// window.
int64_t most_earlier_layers(const Config& config) {
  RouterConfig router = config.router;
  router.window = 0;
  if (!reads_option(router, "router.history")) router.history = RouterConfig().history;
  const auto stage_of = stage_of_layers_with_modules(config.model, router);
  size_t most = 0;
  for (size_t l = 1; l <= stage_of.size(); ++l)
    most = std::max(most, visible_layers(static_cast<int64_t>(l), stage_of, router).size());
  return static_cast<int64_t>(most);
}

void add_router(Unused& unused, const Config& config) {
  const RouterConfig& r = config.router;
  const auto kind = format_option("router.kind", r.kind) + " " + router_kind_info(r).limit;
  unused.unless(false, unread_options(r, /*wanted=*/0, kSetsChunks), kind);
  const bool one_layer = moe_layers(config.model) + config.model.num_nextn_predict_layers == 1;
  unused.unless(!one_layer || !reads_option(r, "router.init"), {"router.init"},
                "the model has one MoE layer");
  // router.init still sets the bound of W_O of other layers than the first.
  const auto of_history = keys_with([&](const Field& field) {
    return field.has(kHistoryOnly, kSetsChunks) && field.key != "router.init" && reads_option(r, field);
  });
  const std::string single_layers = "each router stage has one MoE layer";
  const int64_t most = most_earlier_layers(config);
  const bool earlier = most > 0;
  unused.unless(earlier, of_history, single_layers);
  if (earlier && reads_option(r, "router.history")) {
    const bool several = stage_of_layers(moe_layers(config.model), r).back() > 0;
    unused.unless(several, {"router.history"}, "the model has one router stage");
    unused.unless(!r.has_global_history() || config.parallel.pipeline > 1,
                  {"router.stages", "router.stage_sizes"},
                  format_option("router.history", name_of(r.history)));
    unused.unless(r.window < most, {"router.window"},
                  "a layer sees at most " + std::to_string(most) + " of the earlier layers");
  }
  if (!earlier && reads_option(r, "router.stages")) {
    unused.add(format_option("router.stages", r.stages) + ": " + single_layers + ", so with " +
               format_option("router.kind", r.kind) + " no layer reads an earlier one");
  }
  unused.unless(!earlier || !reads_option(r, "router.scale") || r.scale, {"router.eps"},
                format_option("router.scale", r.scale));
  unused.unless(config.parallel.pipeline > 1, unread_options(r, kSetsChunks), kind);
  unused.unless(config.train.dtype != Dtype::kFp64, {"router.dtype"},
                format_option("train.dtype", name_of(config.train.dtype)));
  unused.unless(r.balance != BalanceScope::kNone, {"router.balance_loss"},
                format_option("router.balance", name_of(r.balance)));
  unused.unless(r.balance == BalanceScope::kNone || r.balance_loss > 0, {"router.balance"},
                format_option("router.balance_loss", r.balance_loss));
  unused.unless(r.capacity_factor > 0 || r.eval_capacity_factor > 0, {"router.drop_policy"},
                "router.capacity_factor and router.eval_capacity_factor are 0");
  unused.unless(!has_equal_expert_weights(config.model), {"router.drop_policy"},
                equal_expert_weights(config.model));
}

void add_schedule(Unused& unused, const OptimConfig& o, int64_t steps) {
  const auto schedule = format_option("optim.schedule", name_of(o.schedule));
  std::vector<std::string> decay = {"optim.schedule", "optim.decay_steps"};
  const bool wsd = o.schedule == LrSchedule::kWsd;
  if (wsd) decay.push_back("optim.decay_shape");
  if (o.warmup_steps >= steps) {
    decay.push_back("optim.min_lr");
    unused.unless(false, decay, format_option("optim.warmup_steps", o.warmup_steps) + ", all steps");
  } else if (o.schedule == LrSchedule::kConstant) {
    unused.unless(false, {"optim.min_lr", "optim.decay_steps"}, schedule);
  } else {
    unused.unless(o.min_lr < o.lr, decay, format_option("optim.min_lr", o.min_lr) + " = optim.lr");
    const int64_t end = o.warmup_steps + o.decay_steps;
    if (!wsd && o.decay_steps > 0 && o.min_lr == 0 && end < steps)
      unused.add(format_option("optim.decay_steps", o.decay_steps) + ": the learning rate is 0 from step " +
                 std::to_string(end) + " on");
  }
  unused.unless(wsd, {"optim.decay_shape"}, schedule);
}

void add_optim(Unused& unused, const Config& config) {
  const OptimConfig& o = config.optim;
  const bool muon = o.kind == OptimKind::kMuon, frozen = !config.train.trains_all();
  const auto kind = format_option("optim.kind", name_of(o.kind));
  const auto trainable = format_option("train.trainable", name_of(config.train.trainable));
  const auto muon_router = format_option("optim.muon_router", o.muon_router);
  unused.unless(muon, keys_with(kMuonOnly), kind);
  unused.unless(!muon || !frozen || o.muon_router, {"optim.kind", "optim.muon_momentum"},
                trainable + " and " + muon_router);
  const bool matrices = muon && frozen && o.muon_router && !router_kind_info(config.router).has_vectors;
  unused.unless(!matrices, {"optim.beta1", "optim.beta2", "optim.eps"},
                trainable + ", " + kind + " and " + muon_router);
  unused.unless(o.history_lr > 0, {"optim.history_weight_decay"},
                format_option("optim.history_lr", o.history_lr));
  add_schedule(unused, o, config.train.steps);
}

void add_validation(Unused& unused, const Config& config) {
  unused.unless(config.eval.every > 0, {"eval.batches", "eval.data"},
                format_option("eval.every", config.eval.every));
  unused.unless(
      config.checkpoint.every > 0, {"checkpoint.keep_best"},
      format_option("checkpoint.every", config.checkpoint.every) + ", only the last checkpoint is saved");
}

void add_parallel(Unused& unused, const Config& config, int64_t ranks, bool cuda) {
  const ParallelConfig& p = config.parallel;
  unused.unless(cuda, {"train.cuda_graph"}, "the device is the CPU");
  unused.unless(!cuda || ranks == 1, {"train.cuda_graph"},
                "the run has " + std::to_string(ranks) + " ranks; communication is not captured");
  unused.unless(p.pipeline > 1, keys_with(kPipelineOnly), format_option("parallel.pipeline", p.pipeline));
  const RouterKindInfo& kind = router_kind_info(config.router);
  unused.unless(p.pipeline == 1 || kind.stores_probs, {"parallel.history_top"},
                format_option("router.kind", config.router.kind) + " " + kind.limit);
  unused.unless(ranks > 1, {"parallel.timeout"}, "the run has one rank");
}

}  // namespace

std::vector<std::string> options_without_effect(const Config& config, int64_t ranks, bool cuda) {
  Unused unused(config);
  add_model(unused, config.model);
  add_router(unused, config);
  unused.unless(config.model.num_nextn_predict_layers > 0, {"train.mtp_loss"},
                format_option("model.num_nextn_predict_layers", config.model.num_nextn_predict_layers));
  add_optim(unused, config);
  add_validation(unused, config);
  add_parallel(unused, config, ranks, cuda);
  auto lines = std::move(unused).lines();
  for (auto& line : phases_without_effect(config)) lines.push_back(std::move(line));
  return lines;
}

std::vector<std::string> options_missing_from_config_json(const Config& config, Dtype dtype) {
  const ModelConfig& m = config.model;
  const RouterConfig& r = config.router;
  const std::string missing = " has no key in config.json: ";
  std::vector<std::string> lines;
  if (m.norm_topk_prob && m.norm_topk_eps != ModelConfig().norm_topk_eps) {
    lines.push_back(format_option("model.norm_topk_eps", m.norm_topk_eps) + missing +
                    "transformers uses its own constant, and hero export rejects the model");
  }
  if (r.eval_capacity_factor > 0) {
    lines.push_back(format_option("router.eval_capacity_factor", r.eval_capacity_factor) + missing +
                    "an exported folder and transformers drop no tokens");
  }
  if (r.dtype == RouterDtype::kFp32 && dtype == Dtype::kBf16) {
    lines.push_back(format_option("router.dtype", name_of(r.dtype)) + missing +
                    "a model folder with bf16 weights computes its routers in bf16");
  }
  return lines;
}

std::vector<std::string> sizes_without_kernels(const Config& config, bool cuda) {
  const ModelConfig& m = config.model;
  if (cuda || config.train.dtype != Dtype::kBf16) return {};
  const auto other_family = keys_with(m.is_deepseek() ? kGroupedQueryOnly : kDeepseekOnly);
  Config copy = config;
  const auto all = fields(copy);
  std::vector<std::string> lines;
  for (const std::string& key : keys_with(kMatrixSize)) {
    const FieldValue value = read(*find_field(all, key));
    const bool unused = std::ranges::find(other_family, key) != other_family.end() ||
                        (key == "model.intermediate_size" && moe_layers(m) == m.num_hidden_layers);
    if (unused || std::get<int64_t>(value) % 16 == 0) continue;
    lines.push_back(format_option(key, value) +
                    " is not a multiple of 16: PyTorch's operators, which are slower, run instead of ours");
  }
  return lines;
}

void warn(const std::vector<std::string>& lines) {
  for (const auto& line : lines) std::fprintf(stderr, "warning: %s\n", line.c_str());
}

}  // namespace hero
