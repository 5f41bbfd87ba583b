#pragma once
// What every pipeline rank does in a step, and in which order: data that the trainer carries out, that can be
// printed and drawn, and whose properties are tested without a process. Chunk c of the model lies on rank
// c % ranks.
#include <cstdint>
#include <functional>
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
/// UserError for a kind, or numbers, that do not go together.
Schedule make_schedule(const std::string& kind, int64_t ranks, int64_t chunks, int64_t micro_batches);

/// Most activations that each rank holds at a time, one for each chunk and micro-batch whose forward pass
/// began and whose weights' gradient is not done.
std::vector<int64_t> held_activations(const Schedule& schedule);

/// Carries the schedule out without times. `chunks`: of the whole model. std::logic_error naming the rank and
/// the action where an action is missing, twice or on a wrong rank, where it needs what can never come
/// (deadlock), or where a receiver needs the messages of one sender and kind (activations, gradients) in
/// another order than they are sent.
void check_schedule(const Schedule& schedule, int64_t chunks, int64_t micro_batches);

/// "0F3": chunk 0, forward, micro-batch 3; B backward, I input gradient, W weight gradient (PyTorch's
/// notation).
std::string to_text(const Action& action);

/// One line a rank: "rank 0: 0F0 0F1 0B0 0B1".
std::string to_text(const Schedule& schedule);

/// An action by its rank and its number in that rank's order.
struct Place {
  int64_t rank, index;
};

/// Calls `visit` with every action and with those that it needs and that were visited before it: the
/// micro-batch's pass on the chunk before (forward) or behind (gradients), a chunk's forward for its
/// gradients, its input gradient for its weights. std::logic_error on a deadlock. `chunks`: of the whole
/// model.
void carry_out(const Schedule& schedule, int64_t chunks,
               const std::function<void(Place, const std::vector<Place>&)>& visit);

}  // namespace hero
