#pragma once
// What the routers' weights say about who depends on whom (HERO-MoE, "Visualization and Statistical
// Details").
#include <optional>
#include <vector>

#include "analysis/router_history.h"

namespace hero {

/// A layer and one that it sees.
struct LayerPair {
  int64_t layer = 0, predecessor = 0;
};

struct BlockStrength {
  double norm = 0;  ///< Frobenius
  double effective_rank = 0;
};

struct PairStrength {
  LayerPair pair;
  double depth_factor = 1;  ///< as RouterHistory
  BlockStrength raw, centered;
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

/// What depends on whether the blocks are raw or centered.
struct BlockStatistics {
  at::Tensor dependency_LL;              ///< fp64, D_{l,p} = ||W_R^(l,p)||_F sqrt((l-1)/M_l); 0 where unseen
  std::optional<StrongCoupling> strong;  ///< none where no layer sees another
};

/// Two changes of W_R leave every routing probability as it is: adding a constant to a column of a block,
/// because softmax ignores a shift of all logits, and moving a constant of a row from one block to another,
/// because each layer's probabilities sum to 1 and the blocks share rho. The raw statistics (the paper's)
/// depend on both changes; the centered ones and the bias on neither.
struct Coupling {
  BlockStatistics raw, centered;
  at::Tensor expert_bias_LE;        ///< fp64, expert_bias(); 0 in layers that see no other
  std::vector<PairStrength> pairs;  ///< every visible pair, by layer, then predecessor
};

Coupling coupling(const RouterHistory& history);

/// A block [E, E] without its column means (over target experts) and its row means (over source experts).
at::Tensor centered_block(const at::Tensor& block);

/// Sum of the blocks' row means of layer l, minus its mean over experts, which shifts all logits: what the
/// centered blocks lack. It adds rho times this to each expert's logit. fp64 [E]; l must see a predecessor.
at::Tensor expert_bias(const RouterHistory& history, int64_t l);

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
