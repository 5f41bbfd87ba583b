#pragma once
// What `hero plan` prints.
#include <optional>

#include "perf/layouts.h"

namespace hero {

/// A layout with three routers: none of history, HERO's over its stage, HERO's over all layers.
struct Comparison {
  Config config;
  Prediction baseline, stage, global;
};

Comparison compare(const Config& config, const Cluster& cluster);

/// Hours of a whole run: those measured of a baseline, to which the efficiency was fitted, and of HERO, if
/// given.
struct Hours {
  double baseline = 0, hero = 0;  ///< 0: not given
  double steps = 0;
};

struct Report {
  Cluster cluster;
  int64_t tried = 0, fitting = 0;  ///< 0 tried: the configuration's own layout alone
  std::vector<Comparison> layouts;
  std::optional<Hours> hours;
};

void print_report(const Report& report);
void print_report_json(const Report& report);

}  // namespace hero
