#pragma once
// Pipeline schedules: the ordered actions of every pipeline rank in a step, as data that the trainer runs,
// that can be printed and drawn, and that is tested without processes. Chunk c of the model is on
// rank c % ranks.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "config/choices.h"

namespace hero {

enum class Pass {
  forward,
  backward,        ///< gradients of inputs and weights together
  input_gradient,  ///< of inputs only; unblocks the previous rank
  weight_gradient  ///< of weights; fills pipeline bubbles
};

struct Action {
  Pass pass;
  int64_t chunk;  ///< of the whole model, from 0
  int64_t micro_batch;
  bool operator==(const Action&) const = default;
};

/// Actions of every pipeline rank, in order.
using Schedule = std::vector<std::vector<Action>>;

/// `chunks`: per rank, more than 1 only if interleaved, where micro_batches is a multiple of ranks. With one
/// rank, each micro-batch runs forward and backward in turn. UserError for invalid arguments.
Schedule make_schedule(PipelineSchedule kind, int64_t ranks, int64_t chunks, int64_t micro_batches);

/// A rank's forward passes without backward passes, for evaluation. `chunks`: per rank.
std::vector<Action> forward_actions(int64_t rank, int64_t ranks, int64_t chunks, int64_t micro_batches);

/// Peak number of in-flight activations per rank: one per chunk and micro-batch from its forward pass to its
/// weight gradient.
std::vector<int64_t> peak_activations(const Schedule& schedule);

/// Number of actions after which a rank waits until the messages of an action have been received, so that it
/// does not keep all messages of a step. No schedule, nor forward_actions, can deadlock by that. `chunks`: of
/// the whole model.
inline size_t send_window(int64_t chunks) { return static_cast<size_t>(2 * chunks); }

/// "0F3": chunk 0, forward, micro-batch 3; B backward, I input gradient, W weight gradient (PyTorch's
/// notation).
std::string to_text(const Action& action);

/// Position of an action: its rank and its index in that rank's order.
struct ActionPosition {
  int64_t rank, index;
};

/// Calls `visit` for every action with its dependencies, all visited before: the micro-batch's pass on the
/// previous chunk (forward) or the next one (gradients), the forward pass for gradients, the input gradient
/// for weight gradients. std::logic_error on a deadlock. `chunks`: of the whole model.
void visit_in_dependency_order(
    const Schedule& schedule, int64_t chunks,
    const std::function<void(ActionPosition, const std::vector<ActionPosition>&)>& visit);

}  // namespace hero
