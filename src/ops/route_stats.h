#pragma once
// Statistics that a router computes per token, for logging: the columns of RouteOutput::stats. Kernels,
// metrics and analyses index them by name. Device code includes this file, so it includes no tensor headers.
//
// To add a statistic: append it to both lists and compute it in route.cpp (route_forward_reference and
// route_through), cpu/route.cpp and cuda/kernels/route.cuh.
#include <cstdint>
#include <iterator>

namespace hero::ops {

/// A column of RouteOutput::stats. The columns of the history are 0 for a router without history.
enum RouteStat : int64_t {
  kRmsHidden,        ///< RMS(x)
  kRmsHistory,       ///< RMS(H)
  kRho,              ///< scale of the history; 1 if `scale` is false
  kHiddenVariance,   ///< variance over experts of Z_O
  kHistoryVariance,  ///< variance over experts of Z_R
  kEndOfRouteStats
};

/// Names of the columns. A metric that is a column's mean has its name (train/layer_stats.cpp).
inline constexpr const char* kRouteStatNames[] = {
    "rms_hidden", "rms_history", "rho", "hidden_variance", "history_variance",
};

/// Number of columns.
inline constexpr int64_t kRouteStats = static_cast<int64_t>(std::size(kRouteStatNames));
static_assert(kRouteStats == kEndOfRouteStats, "a column without a name, or a name without a column");

}  // namespace hero::ops
