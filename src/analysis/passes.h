#pragma once
// Forward passes of a model over the passages: loss, where tokens go, and what a missing predecessor costs.
#include "analysis/branches.h"
#include "analysis/coupling.h"
#include "analysis/passages.h"

namespace hero {

/// Takes W_R^(l,p), or its centered part, out of every later layer that sees p, as long as it lives; rho
/// stays as it was, because the history itself does. Then the weights are what they were.
class WithoutPredecessor {
 public:
  WithoutPredecessor(const Transformer& model, int64_t p, Contribution removed);
  ~WithoutPredecessor();
  WithoutPredecessor(const WithoutPredecessor&) = delete;
  WithoutPredecessor& operator=(const WithoutPredecessor&) = delete;

 private:
  struct Saved {
    at::Tensor block, values;
  };
  std::vector<Saved> saved_;
};

/// Where the tokens of a model went.
struct Utilisation {
  int64_t tokens = 0;
  double loss = 0;       ///< nats per predicted token
  at::Tensor shares_LE;  ///< fp64: part of all tokens that each expert receives, before capacity; uniform K/E
};

struct Peak {
  double share = 0;
  int64_t layer = 0, expert = 0;  ///< from 1, from 0
};
Peak peak(const at::Tensor& shares_LE);

/// The first tokens of the first passage, and which experts they went to.
struct TokenPaths {
  std::vector<int64_t> ids;
  std::vector<at::Tensor> experts, weights;  ///< of every layer [T, K], by falling weight
};

struct LossWithout {
  int64_t predecessor = 0;
  double loss = 0;           ///< without all of p's contribution
  double centered_loss = 0;  ///< without that of the centered blocks
};

/// What the passes over a HERO model found.
struct HistoryEffects {
  Utilisation utilisation;
  HistorySums sums;
  TokenPaths paths;
  std::vector<LossWithout> losses;  ///< for every layer that a later one sees
};

/// Layers that a later one sees, ascending.
std::vector<int64_t> predecessors(const HistoryLayout& layout);

/// A whole pass, and two without each of predecessors().
int64_t history_passes(const HistoryLayout& layout);

/// Called with the windows that a pass has gone over, counting every pass.
using Passed = std::function<void(int64_t windows)>;

/// `batch` windows at a time, history_passes() passes; those without p begin behind p.
HistoryEffects history_effects(const Transformer& model, const Passages& passages, int64_t batch,
                               const Passed& passed);

/// One pass.
Utilisation utilisation(const Transformer& model, const Passages& passages, int64_t batch,
                        const Passed& passed);

/// Spearman's rank correlation, equal values sharing their mean rank; none for fewer than 3 values, or where
/// one side is all equal.
std::optional<double> rank_correlation(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace hero
