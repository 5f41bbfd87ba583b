#include "model/router_kind.h"

#include <algorithm>

#include "config/json_section.h"
#include "config/router_kinds.h"

namespace hero {

// The entries, each defined in router_kind_<kind>.cpp.
const RouterKind& baseline_router_kind();
const RouterKind& hero_router_kind();
const RouterKind& rmoe_router_kind();

const std::vector<const RouterKind*>& all_router_kinds() {
  static const std::vector<const RouterKind*> kinds = {&baseline_router_kind(), &hero_router_kind(),
                                                       &rmoe_router_kind()};
  return kinds;
}

const RouterKind& router_kind(const RouterConfig& router) {
  const std::string& name = router_kind_info(router).name;
  return **std::ranges::find_if(all_router_kinds(),
                                [&](const RouterKind* kind) { return kind->name() == name; });
}

bool is_router_weight(const Config& config, const std::string& parameter) {
  // The first layer has weights of every name.
  const auto weights = router_kind(config.router).weights(config, /*l=*/1, /*seen=*/0);
  const std::string block = "." + std::string(config.model.type().moe_block) + ".";
  return std::ranges::any_of(
      weights, [&](const RouterWeight& weight) { return parameter.ends_with(block + weight.name); });
}

void read_stages(JsonSection& section, const ModelConfig& model, RouterConfig& router) {
  const auto stages = section.integers("stages");
  if (stages.empty()) return;
  int64_t previous = 0;
  router.stage_sizes.assign(1, 0);
  for (const int64_t stage : stages) {
    if (stage == previous + 1) router.stage_sizes.push_back(0);
    if (stage < previous || stage > previous + 1)
      section.reject("stages", "stage indices that start at 0 and increase by at most 1");
    ++router.stage_sizes.back();
    previous = stage;
  }
  if (static_cast<int64_t>(stages.size()) != moe_layers(model)) {
    section.reject("stages",
                   "one stage index for each of the " + std::to_string(moe_layers(model)) + " MoE layers");
  }
  if (router.stage_sizes[0] == 0)
    section.reject("stages", "stage indices that start at 0 and increase by at most 1");
  router.stages = static_cast<int64_t>(router.stage_sizes.size());
  RouterConfig defaults;
  defaults.stages = router.stages;
  if (stage_of_layers(moe_layers(model), defaults) == stages) router.stage_sizes.clear();
}

}  // namespace hero
