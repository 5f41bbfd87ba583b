#pragma once
// Activation recomputation (activation checkpointing): a layer runs forward without an autograd graph; its
// backward pass runs it again with one.
#include <memory>

#include "model/decoder_layer.h"

namespace hero {

/// layer(x, ...) with the same values and bitwise equal gradients, saving only x. The second pass rewrites
/// the layer's history slot with the same values; its counts are discarded, so nothing is counted twice.
/// Deferred weight gradients go to the queue of the first pass. Without trainable weights in the layer and
/// gradient of x nothing is saved or run again.
DecoderLayer::Output recompute_layer(const DecoderLayer& layer, const at::Tensor& x,
                                     const RotaryTable& rotary,
                                     const std::shared_ptr<RoutingHistory>& history,
                                     const ForwardContext& context);

}  // namespace hero
