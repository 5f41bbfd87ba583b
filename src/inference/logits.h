#pragma once
// Logits, routing and gradients of a model for given tokens, for comparing implementations.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "model/transformer.h"

namespace hero {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Tokens whose fp32 logits are computed at a time, in 64 MiB.
inline int64_t logits_chunk(int64_t vocab_size) {
  return std::max<int64_t>(1, (int64_t{1} << 26) / (4 * vocab_size));
}

/// For every list n: logits.{n} [S, V] fp32 (fp64 in fp64); with `routing` also, for every MoE layer l from
/// 1, router_logits.{n}.{l} [S, E], topk_ids.{n}.{l} [S, K] int64, topk_weights.{n}.{l} [S, K].
NamedTensors model_logits(const Transformer& model, const std::vector<std::vector<int64_t>>& tokens,
                          bool routing);

/// One forward and backward pass over the lists as one batch: `lm_loss`, the mean next-token cross-entropy;
/// `balance_loss` before its coefficient; `loss`, their sum as in the model's configuration; and grad.NAME of
/// `loss` for every weight under its name on disk. UserError if the lengths differ or are below 2.
NamedTensors model_gradients(const Transformer& model, const std::vector<std::vector<int64_t>>& tokens);

void write_tensors(const std::filesystem::path& path, const NamedTensors& tensors);

}  // namespace hero
