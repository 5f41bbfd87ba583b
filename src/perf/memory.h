#pragma once
// Bytes that training holds on one device, by part. The trainer's own tensors are counted one by one, so a
// change there is a change here; tests compare with what the allocator hands out.
#include <string>
#include <vector>

#include "config/config.h"

namespace hero {

/// How training is spread over devices.
struct Layout {
  int64_t data = 1;       ///< ranks that share the optimizer's state and split the batch
  int64_t pipeline = 1;   ///< stages that split the layers
  int64_t expert = 1;     ///< data ranks that split every layer's experts
  int64_t chunks = 1;     ///< parts of the layers on every pipeline rank
  int64_t in_flight = 1;  ///< micro-batches whose activations a device holds at a time
};

struct MemoryPart {
  std::string name;
  double bytes = 0;
};

/// Bytes that a decoder layer keeps for its backward pass and for the losses, for `tokens` tokens, its input
/// included and its history slots not.
double layer_activation_bytes(const Config& config, int64_t i, double tokens);

/// The part of them that a MoE layer's router, choice and losses keep.
double routing_bytes(const Config& config, double tokens);

/// The same for the final norm, the output projection and the loss, the projection's gradient included.
double head_activation_bytes(const Config& config, double tokens);

/// Slots and sums of squares of the routing history that a pipeline stage holds for `tokens` tokens. Each of
/// its chunks has those of every layer that lies on it or sent its routing there, but for a group's last,
/// which nobody reads.
double history_bytes(const Config& config, double tokens, const Layout& layout, int64_t stage);

/// What crosses the boundary behind the chunk: slots and sums of squares of the layers before it that layers
/// behind it see. `bounds`: chunk_bounds. Of parallel.history_top entries, each with its number in two bytes,
/// and the mass of the rest, where that is set.
double crossing_history_bytes(const Config& config, double tokens, const std::vector<int64_t>& bounds,
                              int64_t chunk);

/// Weights, master weights, gradients, optimizer, activations, history and workspace of the pipeline stage
/// that holds most, in the order of their names' first mention here.
std::vector<MemoryPart> device_memory(const Config& config, const Layout& layout);

/// The same for one stage and its own number of micro-batches in flight.
std::vector<MemoryPart> stage_memory(const Config& config, const Layout& layout, int64_t stage,
                                     double in_flight);

/// UserError where model.vocab_size is not known.
void check_vocabulary(const Config& config);

double total(const std::vector<MemoryPart>& parts);

/// Weights that a device holds: those that all data ranks share, and its part of the experts, which only
/// every layout.expert-th data rank has too.
struct StageWeights {
  double common = 0, experts = 0;
  double sum() const { return common + experts; }
};

/// Of a device of each pipeline stage: all of its layers, the embedding on the first stage, final norm and
/// output projection on the last. Tied, the last stage has a copy.
std::vector<StageWeights> stage_weights(const Config& config, const Layout& layout);

/// Data ranks that hold the same experts.
int64_t expert_replicas(const Layout& layout);

/// Bytes of one number, by what it is for.
struct Widths {
  double operand;  ///< weights and activations
  double wide;     ///< sums, logits and gradients
  double router;   ///< the router's operands and the history

  explicit Widths(const Config& config);
};

/// First decoder layer of every chunk and the number of layers: chunk_bounds, and for one chunk the whole
/// model whatever parallel.chunk_sizes says.
std::vector<int64_t> layout_bounds(const Config& config, const Layout& layout);

/// The pipeline stage of every decoder layer.
std::vector<int64_t> pipeline_stages(const Config& config, const Layout& layout);

}  // namespace hero
