#pragma once
// Forward passes of a model: loss, expert utilization, and the loss without a predecessor's history.
#include "analysis/branches.h"
#include "analysis/coupling.h"
#include "analysis/token_windows.h"

namespace hero {

/// RAII: zeroes W_R^(l,p), or removes its centered part, in every layer that sees p. rho is unchanged,
/// because the history is. The destructor restores the weights.
class PredecessorAblation {
 public:
  PredecessorAblation(const Transformer& model, int64_t p, Contribution removed);
  ~PredecessorAblation();
  PredecessorAblation(const PredecessorAblation&) = delete;
  PredecessorAblation& operator=(const PredecessorAblation&) = delete;

 private:
  struct Saved {
    at::Tensor block, values;
  };
  std::vector<Saved> saved_;
};

/// Loss and expert utilization of a model.
struct Utilization {
  int64_t tokens = 0;
  double loss = 0;       ///< nats per predicted token
  at::Tensor shares_LE;  ///< fp64: share of all tokens per expert, before capacity; uniform: K/E
};

struct Peak {
  double share = 0;
  int64_t layer = 0, expert = 0;  ///< from 1, from 0
};
Peak peak(const at::Tensor& shares_LE);

/// The first tokens of the first window, and the experts that they are routed to.
struct TokenPaths {
  std::vector<int64_t> ids;
  std::vector<at::Tensor> experts, weights;  ///< per layer [T, K], by descending weight
};

struct AblationLoss {
  int64_t predecessor = 0;
  double loss = 0;           ///< without all of p's contribution
  double centered_loss = 0;  ///< without the contribution of the centered blocks
};

/// Results of the forward passes of a HERO model.
struct HistoryEffects {
  Utilization utilization;
  HistorySums sums;
  TokenPaths paths;
  std::vector<AblationLoss> losses;  ///< for every layer in predecessors()
};

/// Layers that are visible to a later layer, ascending.
std::vector<int64_t> predecessors(const HistoryLayout& layout);

/// Number of passes: one with the full history, and two without each of predecessors().
int64_t history_passes(const HistoryLayout& layout);

/// Called with the number of windows processed, summed over passes.
using ProgressCallback = std::function<void(int64_t windows)>;

/// history_passes() passes in batches of `batch` windows; passes without p start after layer p.
HistoryEffects history_effects(const Transformer& model, const TokenWindows& token_windows, int64_t batch,
                               const ProgressCallback& on_progress);

/// One pass.
Utilization utilization(const Transformer& model, const TokenWindows& token_windows, int64_t batch,
                        const ProgressCallback& on_progress);

/// Spearman rank correlation with mean ranks for ties; nullopt for fewer than 3 values or constant input.
std::optional<double> rank_correlation(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace hero
