#pragma once
// What every pipeline rank does in a step, and in which order: data that the trainer carries out, that can be
// printed and drawn, and whose properties are tested without a process. Chunk c of the model lies on rank
// c % ranks.
#include <cstdint>
#include <string>
#include <vector>

namespace hero {

enum class Pass {
  forward,
  backward,        ///< gradients of inputs and weights together
  input_gradient,  ///< of inputs alone, so that the rank before can go on
  weight_gradient  ///< of weights, whenever a rank would otherwise wait
};

struct Action {
  Pass pass;
  int64_t chunk;  ///< of the whole model, from 0
  int64_t micro_batch;
  bool operator==(const Action&) const = default;
};

/// Actions of every pipeline rank, in order.
using Schedule = std::vector<std::vector<Action>>;

/// `kind`: "1f1b" (PipeDream-flush; arXiv 2104.04473), "interleaved" 1F1B with `chunks` chunks a rank (the
/// same paper; micro_batches a multiple of ranks), "zero_bubble" (ZB-H1 of arXiv 2401.10241: 1F1B's memory,
/// input and weight gradients apart). With one rank every micro-batch goes forward and backward at once.
Schedule make_schedule(const std::string& kind, int64_t ranks, int64_t chunks, int64_t micro_batches);

}  // namespace hero
