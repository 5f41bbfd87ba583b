#pragma once
// What the routers' weights say about who depends on whom (HERO-MoE, "Visualization and Statistical
// Details").
#include <optional>
#include <vector>

#include "analyze/router_history.h"

namespace hero {

/// A layer and one that it sees.
struct LayerPair {
  int64_t layer = 0, predecessor = 0;
};

struct PairStrength {
  LayerPair pair;
  double depth_factor = 1;    ///< as RouterHistory
  double norm = 0;            ///< Frobenius, of the raw block
  double effective_rank = 0;  ///< of the raw block
};

/// Entries of all blocks at one layer distance.
struct DistanceShare {
  int64_t distance = 0;
  double negative = 0, positive = 0;  ///< percent of the entries below -tau, and above tau
  int64_t entries = 0;
};

/// Entries beyond the 90th percentile tau of the magnitudes of all of them.
struct StrongCoupling {
  double tau = 0;
  std::vector<DistanceShare> distances;  ///< ascending, those that occur
};

struct Coupling {
  at::Tensor dependency_LL;              ///< fp64, D_{l,p} = ||W_R^(l,p)||_F sqrt((l-1)/M_l); 0 where unseen
  std::optional<StrongCoupling> strong;  ///< the paper's; none where no layer sees another
  /// The same without what the softmax does not see: every source expert's mean over the target experts,
  /// which raises all logits alike, is taken out of its column first.
  std::optional<StrongCoupling> centred;
  std::vector<PairStrength> pairs;  ///< every visible pair, by layer, then predecessor
};

Coupling coupling(const RouterHistory& history);

/// The visible pairs of a layout, by layer, then predecessor.
std::vector<LayerPair> visible_pairs(const HistoryLayout& layout);

/// The paper's example where the model has it (layer 10 and its predecessor 9, "Layer 8 -> Layer 9" counted
/// from 0), else the middle one of the adjacent pairs; none where there are none.
std::optional<LayerPair> default_pair(const HistoryLayout& layout);

/// The percentile with linear interpolation between the two nearest values, to the bit as numpy.percentile.
/// Reorders `values`, of which there must be one at least.
double percentile(std::vector<double>& values, double percent);

/// e to the entropy of the singular values divided by their sum (Roy and Vetterli, The effective rank,
/// 2007); 0 for a matrix of zeros.
double effective_rank(const at::Tensor& matrix);

}  // namespace hero
