#include "perf/comparison.h"

#include <algorithm>

#include "config/router_kinds.h"

namespace hero {

std::vector<ComparedRouter> compared_routers(const RouterConfig& configured) {
  const RouterKindInfo& baseline = router_kinds().front();
  const RouterKindInfo& compared = compared_kind(configured);
  RouterConfig router = configured;
  router.kind = baseline.name;
  std::vector<ComparedRouter> all = {{baseline.title, baseline.name, baseline.title, router}};
  router.kind = compared.name;
  if (!reads_option(router, "router.history")) {
    all.push_back({compared.title, compared.name, compared.title, router});
    return all;
  }
  for (const std::string& history : names_of<HistoryScope>()) {
    router.history = parse_choice<HistoryScope>("router.history", history);
    all.push_back({compared.title + ", " + history, compared.name + "_" + history, history, router});
  }
  return all;
}

size_t configured_router(const RouterConfig& configured) {
  const auto all = compared_routers(configured);
  const auto found = std::ranges::find_if(all, [&](const ComparedRouter& one) {
    return one.router.kind == configured.kind && one.router.history == configured.history;
  });
  return static_cast<size_t>(found - all.begin());
}

Comparison compare(const Config& config, const Cluster& cluster) {
  Comparison out{.config = config, .predictions = {}};
  for (const ComparedRouter& one : compared_routers(config.router)) {
    Config variant = config;
    variant.router = one.router;
    out.predictions.push_back(predict(variant, cluster));
  }
  return out;
}

}  // namespace hero
