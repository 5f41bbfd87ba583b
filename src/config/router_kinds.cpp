#include "config/router_kinds.h"

#include <algorithm>
#include <set>

#include "config/fields.h"
#include "io/error.h"

namespace hero {

const std::vector<RouterKindInfo>& router_kinds() {
  static const std::vector<RouterKindInfo> kinds = {
      {.name = "baseline",
       .title = "baseline",
       .description = "",
       .reads = [](const Field&) { return false; },
       .limit = "reads no history",
       .extends = "",
       .in_transformers = true,
       // Exported with this code if transformers' class computes other scores.
       .modeling = "hero",
       .class_prefix = "Hero"},
      {.name = "hero",
       .title = "HERO",
       .description = "uses the routing history of preceding layers",
       .reads = [](const Field& field) { return field.has(kHistoryOnly); },
       .limit = "reads the routing history only",
       .stores_probs = true,
       .extends = "baseline",
       .modeling = "hero",
       .class_prefix = "Hero"},
      {.name = "rmoe",
       .title = "RMoE",
       .description = "carries the state of a GRU from layer to layer (arXiv 2408.06793)",
       .reads =
           [](const Field& field) {
             static const std::set<std::string> keys = {"router.state_size", "router.detach", "router.stages",
                                                        "router.stage_sizes"};
             return keys.contains(field.key);
           },
       .limit = "reads the state of the preceding layer only",
       .extends = "",
       .shares_weights = true,
       .has_vectors = true,
       .modeling = "rmoe",
       .class_prefix = "Rmoe"},
  };
  return kinds;
}

const RouterKindInfo& router_kind_info(const RouterConfig& router) {
  std::string names;
  for (const RouterKindInfo& kind : router_kinds()) {
    if (kind.name == router.kind) return kind;
    names += (names.empty() ? "" : ", ") + kind.name;
  }
  throw UserError("router.kind: found " + router.kind + ", expected one of " + names);
}

const RouterKindInfo& compared_kind(const RouterConfig& router) {
  RouterConfig compared = router;
  if (compared.kind == router_kinds().front().name) compared.kind = "hero";
  return router_kind_info(compared);
}

bool reads_option(const RouterConfig& router, const Field& field) {
  return router_kind_info(router).reads(field) ||
         std::ranges::none_of(router_kinds(), [&](const RouterKindInfo& kind) { return kind.reads(field); });
}

bool reads_option(const RouterConfig& router, const std::string& key) {
  Config config;
  const auto list = fields(config);
  return reads_option(router, *find_field(list, key));
}

std::vector<std::string> unread_options(const RouterConfig& router, uint32_t wanted, uint32_t unwanted) {
  return keys_with(
      [&](const Field& field) { return field.has(wanted, unwanted) && !reads_option(router, field); });
}

int64_t history_top(const Config& config) {
  return router_kind_info(config.router).stores_probs ? config.parallel.history_top : 0;
}

}  // namespace hero
