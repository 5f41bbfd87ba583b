#pragma once
// Bytes that training holds on one device, by category. Counts the trainer's tensors one by one, so changes
// there must be repeated here; tests compare with the allocator's total.
#include <string>
#include <vector>

#include "config/config.h"

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

/// UserError if model.vocab_size is not set.
void check_vocabulary(const Config& config);

double total(const std::vector<MemoryItem>& items);

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
