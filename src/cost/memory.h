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
  int64_t expert = 1;     ///< ranks that split every layer's experts
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

/// Slots and sums of squares of the routing history that a pipeline stage holds for `tokens` tokens: of every
/// layer that lies on it or sent its routing there, but for a group's last, which nobody reads.
double history_bytes(const Config& config, double tokens, int64_t pipeline, int64_t stage);

/// Weights, master weights, gradients, optimizer, activations, history and workspace of the pipeline stage
/// that holds most, in the order of their names' first mention here.
std::vector<MemoryPart> device_memory(const Config& config, const Layout& layout);

/// UserError where model.vocab_size is not known.
void check_vocabulary(const Config& config);

double total(const std::vector<MemoryPart>& parts);

/// Weights that a device of each pipeline stage holds: all of its layers but for other ranks' experts, the
/// embedding on the first stage, final norm and output projection on the last. Tied, the last stage has a
/// copy.
std::vector<double> stage_parameters(const Config& config, const Layout& layout);

/// Bytes of one number, by what it is for.
struct Widths {
  double operand;  ///< weights and activations
  double wide;     ///< sums, logits and gradients
  double router;   ///< the router's operands and the history

  explicit Widths(const Config& config);
};

/// The pipeline stage of every decoder layer: MoE layers in equal parts, dense layers with the next MoE
/// layer.
std::vector<int64_t> pipeline_stages(const ModelConfig& model, int64_t pipeline);

}  // namespace hero
