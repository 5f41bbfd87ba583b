#pragma once
// Output of `hero plan`.
#include <optional>
#include <vector>

#include "perf/comparison.h"

namespace hero {

/// Measured hours of a whole run: of the baseline, to which the efficiency is fitted, and of the compared
/// router.
struct Hours {
  double baseline = 0, compared = 0;  ///< 0: not given
  double steps = 0;
};

struct Report {
  Cluster cluster;
  int64_t tried = 0, fitting = 0;  ///< 0 tried: only the configured layout
  std::vector<Comparison> layouts;
  std::optional<Hours> hours;
};

void print_report(const Report& report);
void print_report_json(const Report& report);

}  // namespace hero
