#pragma once
// Weights and memory of pipeline stages in a layout.
#include <vector>

#include "perf/history_costs.h"
#include "perf/memory.h"
#include "perf/muon_cost.h"

namespace hero {

/// Number of weights on a device: `common` ones are replicated on all data ranks, `experts` on every
/// layout.expert-th data rank.
struct WeightCount {
  double common = 0, experts = 0;
  double sum() const { return common + experts; }
};

struct StageWeights {
  WeightCount all, trained;            ///< trained: without frozen ones
  MuonCost muon_common, muon_experts;  ///< the part that Muon updates
};

/// Per pipeline stage: its layers, the embedding on the first stage, final norm and output projection on the
/// last. With tied embeddings, the last stage has a copy.
std::vector<StageWeights> stage_weights(const Config& config, const Layout& layout);

/// Data ranks that hold the same experts.
int64_t expert_replicas(const Layout& layout);

/// A data rank's part of optimizer states that are sharded over the ranks with the same weights: `common`
/// over all data ranks, `experts` over the experts' replicas.
double sharded_sum(const Layout& layout, double common, double experts);

/// Memory of the pipeline stages of a layout. Keeps a reference to `config`.
class StageMemory {
 public:
  StageMemory(const Config& config, const Layout& layout);

  /// Weights, master weights, gradients, optimizer moments, activations and history of one stage that holds
  /// `in_flight` micro-batches.
  std::vector<MemoryItem> items(int64_t stage, double in_flight) const;

  /// The same of the stage with the most memory; `in_flight` per stage.
  std::vector<MemoryItem> largest(const std::vector<double>& in_flight) const;

 private:
  const Config& config_;
  Layout layout_;
  std::vector<int64_t> stages_;  // of the decoder layers
  std::vector<StageWeights> weights_;
  HistoryCosts history_;
};

/// StageMemory::largest with layout.in_flight micro-batches on every stage.
std::vector<MemoryItem> device_memory(const Config& config, const Layout& layout);

}  // namespace hero
