#pragma once
// Bytes that training holds on one device, by category. Counts the trainer's tensors one by one, so changes
// there must be repeated here; tests compare with the allocator's total.
#include <string>
#include <vector>

#include "config/config.h"
#include "perf/muon_cost.h"

namespace hero {

/// How training is distributed over devices.
struct Layout {
  int64_t data = 1;       ///< data parallel ranks; batch and optimizer state are sharded over them
  int64_t pipeline = 1;   ///< pipeline stages
  int64_t expert = 1;     ///< expert parallel ranks, a subset of the data ranks
  int64_t chunks = 1;     ///< model chunks per pipeline rank
  int64_t in_flight = 1;  ///< micro-batches whose activations a device holds at once
};

struct MemoryItem {
  std::string name;
  double bytes = 0;
};

/// Bytes that decoder layer i saves for its backward pass and for the losses, for `tokens` tokens. Includes
/// its input, but not its history slots.
double layer_activation_bytes(const Config& config, int64_t i, double tokens);

/// The part of these bytes that losses and metrics need of a MoE layer's router and expert selection.
double routing_bytes(const Config& config, double tokens);

/// What decoder layer i saves with train.recompute: its input and, for the metrics, its routing.
double recomputed_layer_bytes(const Config& config, int64_t i, double tokens);

/// What decoder layer i saves in a run of this configuration, with or without train.recompute.
double saved_layer_bytes(const Config& config, int64_t i, double tokens);

/// The same as layer_activation_bytes for the final norm, the output projection and the loss, the
/// projection's gradient included.
double head_activation_bytes(const Config& config, double tokens);

/// The output projection's gradient; 0 if it is frozen.
double head_gradient_bytes(const Config& config);

/// Bytes that a multi-token prediction module saves besides its decoder layer.
double mtp_activation_bytes(const Config& config, double tokens);

/// Bytes of the routing history (slots and sums of squares) on a pipeline stage for `tokens` tokens: each
/// chunk has those of HistoryLayout::slots_of.
double history_bytes(const Config& config, double tokens, const Layout& layout, int64_t stage);

/// Bytes of history sent to the next chunk: slots of the layers up to this chunk that are visible to later
/// layers. `bounds`: chunk_bounds. With parallel.history_top, only the top entries with 2-byte expert ids.
double crossing_history_bytes(const Config& config, double tokens, const std::vector<int64_t>& bounds,
                              int64_t chunk);

/// Bytes of R_cp sent with the activations to the next chunk, and back with their gradients: each token's
/// top-k mass, if there are MoE layers before and after the boundary.
double crossing_mass_bytes(const Config& config, double tokens, const std::vector<int64_t>& bounds,
                           int64_t chunk);

/// Weights, master weights, gradients, optimizer moments, activations and history of the pipeline stage with
/// the most memory.
std::vector<MemoryItem> device_memory(const Config& config, const Layout& layout);

/// The same for one stage with `in_flight` micro-batches.
std::vector<MemoryItem> stage_memory(const Config& config, const Layout& layout, int64_t stage,
                                     double in_flight);

/// UserError if model.vocab_size is not set.
void check_vocabulary(const Config& config);

double total(const std::vector<MemoryItem>& items);

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

/// Bytes per element, by kind of tensor.
struct ElementSizes {
  double operand;  ///< weights and activations
  double accum;    ///< sums, logits and gradients
  double router;   ///< router operands and history

  explicit ElementSizes(const Config& config);
};

/// First decoder layer of every chunk, then the number of layers: chunk_bounds, but ignores
/// parallel.chunk_sizes for a single chunk.
std::vector<int64_t> layout_bounds(const Config& config, const Layout& layout);

/// The pipeline stage of every decoder layer.
std::vector<int64_t> pipeline_stages(const Config& config, const Layout& layout);

}  // namespace hero
