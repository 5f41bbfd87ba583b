#pragma once
// Coupling between layers, computed from router weights (HERO-MoE, "Visualization and Statistical Details").
#include <optional>
#include <vector>

#include "analysis/router_history.h"

namespace hero {

/// A layer and a preceding layer that it sees.
struct LayerPair {
  int64_t layer = 0, predecessor = 0;
};

struct BlockStrength {
  double norm = 0;  ///< Frobenius
  double effective_rank = 0;
};

struct PairStrength {
  LayerPair pair;
  double depth_factor = 1;  ///< RouterHistory::depth_factor
  BlockStrength raw, centered;
};

/// Entries of all blocks with the same layer distance.
struct DistanceShare {
  int64_t distance = 0;
  double negative = 0, positive = 0;  ///< percent of the entries below -tau, and above tau
  int64_t entries = 0;
};

/// Entries whose magnitude exceeds tau, the 90th percentile of all magnitudes.
struct StrongCoupling {
  double tau = 0;
  std::vector<DistanceShare> distances;  ///< ascending; only distances that occur
};

/// Statistics of either the raw or the centered blocks.
struct BlockStatistics {
  at::Tensor dependency_LL;              ///< fp64, D_{l,p} = ||W_R^(l,p)||_F sqrt((l-1)/M_l); 0 if unseen
  std::optional<StrongCoupling> strong;  ///< nullopt if no layer sees another
};

/// Two changes of W_R leave all routing probabilities unchanged: adding a constant to a column of a block,
/// because softmax is invariant to a shift of all logits, and moving a constant from a row of one block to
/// another block, because probabilities sum to 1 and the blocks share rho. The raw statistics (the paper's)
/// depend on both changes; the centered statistics and the bias on neither.
struct Coupling {
  BlockStatistics raw, centered;
  at::Tensor expert_bias_LE;        ///< fp64, expert_bias(); 0 in layers that see no layer
  std::vector<PairStrength> pairs;  ///< all visible pairs, sorted by layer, then predecessor
};

Coupling coupling(const RouterHistory& history);

/// A block [E, E] minus its column means (over target experts) and row means (over source experts).
at::Tensor centered_block(const at::Tensor& block);

/// Sum of the row means of layer l's blocks, minus the mean over experts: the bias per expert that centering
/// removes. The layer adds rho times this to the logits. fp64 [E]; l must see a predecessor.
at::Tensor expert_bias(const RouterHistory& history, int64_t l);

/// The visible pairs of a layout, sorted by layer, then predecessor.
std::vector<LayerPair> visible_pairs(const HistoryLayout& layout);

/// The paper's example if the model has it (layer 10 and predecessor 9, "Layer 8 -> Layer 9" counted from 0),
/// else the middle adjacent pair; nullopt if there is none.
std::optional<LayerPair> default_pair(const HistoryLayout& layout);

/// Percentile with linear interpolation, bitwise equal to numpy.percentile. Reorders `values`, which must not
/// be empty.
double percentile(std::vector<double>& values, double percent);

/// exp(entropy of the normalized singular values) (Roy and Vetterli, The effective rank, 2007); 0 for a zero
/// matrix.
double effective_rank(const at::Tensor& matrix);

}  // namespace hero
