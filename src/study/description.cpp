#include "study/description.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/error.h"
#include "model/counts.h"

namespace hero {
namespace {

using nlohmann::ordered_json;

ordered_json cost_of(const Config& config) {
  double parameters = 0, active = 0, exact = 0, paper = 0, router_exact = 0, router_paper = 0;
  const auto tokens = static_cast<double>(config.train.global_batch * config.train.sequence);
  for (const auto& item : model_costs(config)) {
    const double operations = (item.forward + item.backward()) * tokens;
    parameters += item.parameters;
    active += item.active;
    exact += operations;
    paper += item.paper * tokens;
    if (!item.is_router()) continue;
    router_exact += operations;
    router_paper += item.paper * tokens;
  }
  return {{"parameters", parameters},
          {"active_parameters", active},
          {"step_flops_paper", paper},
          {"step_flops_exact", exact},
          {"router_step_flops_paper", router_paper},
          {"router_step_flops_exact", router_exact}};
}

}  // namespace

ordered_json describe_study(const StudyOptions& options, const std::vector<Variant>& variants,
                            const std::vector<StudyRun>& runs) {
  std::vector<int64_t> seeds;
  int64_t vocab_size = 0;
  ordered_json folders = ordered_json::object();
  for (const auto& run : runs) {
    if (std::ranges::find(seeds, run.config.train.seed) == seeds.end())
      seeds.push_back(run.config.train.seed);
    if (!finished(run)) continue;
    folders[run.folder.filename().string()][std::to_string(run.config.train.seed)] = run.name;
    if (vocab_size == 0)
      vocab_size = load_config({(run.folder / "config.toml").string()}, {}).model.vocab_size;
  }
  if (folders.empty()) throw UserError(options.out.string() + ": found no finished run, expected one");
  const auto& first = runs.front().config;
  ordered_json listed = ordered_json::array();
  for (const auto& variant : variants) {
    Config config = variant.config;
    config.model.vocab_size = vocab_size;
    listed.push_back({{"name", variant.name},
                      {"same_as", variant.same_as.empty() ? ordered_json() : ordered_json(variant.same_as)},
                      {"layers_cut", layers_cut(config)},
                      {"cost", cost_of(config)},
                      {"runs", folders.value(variant.name, ordered_json::object())}});
  }
  return {{"format", 1},
          {"config", options.config.filename().string()},
          {"model_type", name_of(first.model.model_type)},
          {"moe_layers", moe_layers(first.model)},
          {"experts", first.model.num_experts},
          {"top_k", first.model.num_experts_per_tok},
          {"steps", first.train.steps},
          {"tokens_per_step", first.train.global_batch * first.train.sequence},
          {"seeds", seeds},
          {"variants", listed}};
}

}  // namespace hero
