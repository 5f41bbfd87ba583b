#pragma once
// Activation recomputation: a layer's forward pass runs without a graph; its backward pass replays it with
// one.
#include "model/transformer.h"

namespace hero {

/// layer(x, ...) with the same values and bit-equal gradients, keeping only x. The replay writes the layer's
/// history slot again with the same numbers; what the replay counts is thrown away, so nothing is counted
/// twice. Weight gradients go where they were put off to in the first pass.
DecoderLayer::Output recomputed(const DecoderLayer& layer, const at::Tensor& x, const RotaryTable& rotary,
                                const std::shared_ptr<RoutingHistory>& history, const Position& position);

}  // namespace hero
