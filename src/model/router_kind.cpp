#include "model/router_kind.h"

#include <algorithm>

#include "config/router_kinds.h"

namespace hero {

// The entries, each defined in router_kind_<kind>.cpp.
const RouterKind& baseline_router_kind();
const RouterKind& hero_router_kind();

const std::vector<const RouterKind*>& all_router_kinds() {
  static const std::vector<const RouterKind*> kinds = {&baseline_router_kind(), &hero_router_kind()};
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
  return std::ranges::any_of(
      weights, [&](const RouterWeight& weight) { return parameter.ends_with(".mlp." + weight.name); });
}

}  // namespace hero
