#pragma once
// Bytes of the routing history in memory and between pipeline stages.
#include <optional>
#include <vector>

#include "model/history.h"
#include "perf/memory.h"

namespace hero {

/// Builds the HistoryLayout of a configuration once for all layouts, stages and boundaries. `bounds`:
/// chunk_bounds.
class HistoryCosts {
 public:
  /// Keeps a reference to `config`.
  explicit HistoryCosts(const Config& config);

  /// Bytes of the history (slots and sums of squares) on a pipeline stage for `tokens` tokens: each chunk has
  /// those of HistoryLayout::slots_of.
  double bytes(double tokens, const Layout& layout, int64_t stage) const;

  /// Bytes of history sent to the next chunk: slots of the layers up to this chunk that are visible to later
  /// layers. With parallel.history_top, only the top entries with 2-byte expert ids.
  double crossing_bytes(double tokens, const std::vector<int64_t>& bounds, int64_t chunk) const;

  /// Bytes of R_cp sent with the activations to the next chunk, and back with their gradients: each token's
  /// top-k mass, if there are MoE layers before and after the boundary.
  double crossing_mass_bytes(double tokens, const std::vector<int64_t>& bounds, int64_t chunk) const;

 private:
  const Config& config_;
  ElementSizes sizes_;
  std::vector<int64_t> next_moe_layer_;   // at or after each decoder layer; from 1
  std::optional<HistoryLayout> history_;  // none if no router stores probabilities
};

}  // namespace hero
