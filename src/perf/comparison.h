#pragma once
// The routers that `hero plan` compares: the baseline, then compared_kind(), with each scope of its history
// if it reads router.history.
#include <string>
#include <vector>

#include "perf/prediction.h"

namespace hero {

struct ComparedRouter {
  std::string title;   ///< "HERO, stage"
  std::string key;     ///< in the JSON: "hero_stage"
  std::string column;  ///< in the table of layouts: "stage"
  RouterConfig router;
};

std::vector<ComparedRouter> compared_routers(const RouterConfig& configured);

/// Index of the configured router in compared_routers().
size_t configured_router(const RouterConfig& configured);

/// A layout with every router of compared_routers().
struct Comparison {
  Config config;
  std::vector<Prediction> predictions;

  /// With the configured router, by which layouts are ranked.
  const Prediction& configured() const { return predictions[configured_router(config.router)]; }
};

Comparison compare(const Config& config, const Cluster& cluster);

}  // namespace hero
