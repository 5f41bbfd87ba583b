#pragma once
// A pipeline rank's part of a step: carries out its actions of a schedule, and passes activations, routing
// history and gradients to the ranks before and behind it. Nothing is sent later than it is made, and what
// will be needed next is asked for in advance.
#include <functional>
#include <map>

#include "distributed/world.h"
#include "model/transformer.h"
#include "ops/deferred.h"
#include "train/schedule.h"

namespace hero {

/// Of a step, what all ranks of a data rank's pipeline know.
struct MicroBatch {
  at::Tensor samples;  ///< [B, S+1] int64 on the model's device
  Position position;
};

class Pipeline {
 public:
  /// Both outlive it.
  Pipeline(const Transformer& model, const World& world);

  using Read = std::function<const MicroBatch&(int64_t micro_batch)>;
  /// What a chunk adds to the loss, times the micro-batch's share of the step (undefined: nothing), and
  /// Losses::mass_T, which it is given of the chunk before.
  struct ChunkLoss {
    at::Tensor total, mass_T;
  };
  using Loss = std::function<ChunkLoss(const Chunk&, const Transformer::Output&, const MicroBatch&,
                                       const at::Tensor& mass_T)>;
  /// Who must know which weights still lack a contribution to their gradient.
  struct Deferral {
    std::function<void(const at::Tensor& leaf)> deferred;  ///< by a pass for input gradients alone
    std::function<void(const at::Tensor& leaf)> added;     ///< by the pass for weight gradients
  };
  /// Gradients add up in the model's leaves. Where the schedule computes weight gradients in passes of their
  /// own, `deferral` is told of each leaf once per micro-batch when its gradient is deferred and when it has
  /// been added.
  void run(const std::vector<Action>& actions, const Read& read, const Loss& loss, const Deferral& deferral);

  /// What this rank sent in the last run, in bytes, and the seconds that the history's messages took it.
  struct Traffic {
    int64_t activations = 0;  ///< with top-k masses for R_cp, and the gradients of both
    int64_t history = 0;
    double history_seconds = 0;  ///< packing, sending, unpacking; not waiting
  };
  const Traffic& traffic() const { return traffic_; }

 private:
  using Key = std::pair<int64_t, int64_t>;  // chunk, micro-batch
  struct Coming {
    at::Tensor x, mass_T;
    Pending x_pending, mass_pending;
    std::vector<std::pair<int64_t, at::Tensor>> history;  // layer, message
    std::vector<Pending> history_pending;
  };
  struct Flight {
    at::Tensor input, output, loss;
    at::Tensor mass_in, mass_out;                   ///< [T]; undefined where R_cp needs none
    std::unique_ptr<ops::WeightGradients> put_off;  ///< where the schedule makes them apart
  };

  /// Posts the receives of what an action needs from other ranks.
  void ask(const Action& action, const MicroBatch& batch);
  void forward(const Action& action, const MicroBatch& batch, const Loss& loss, const Deferral& deferral);
  /// Gradients of the inputs; those of weights too where the schedule does not make them apart.
  void backward(const Action& action);
  void send(const at::Tensor& t, int64_t from_chunk, int64_t to_chunk);
  /// Whether R_cp pairs MoE layers on both sides of the boundary before MoE layer `first_behind`.
  bool couples(int64_t first_behind) const;
  const Group& lane(int64_t from_chunk, int64_t to_chunk) const;
  int64_t rank_of(int64_t chunk) const { return chunk % world_.mesh().pipeline; }
  size_t held(int64_t chunk) const { return static_cast<size_t>(chunk / world_.mesh().pipeline); }

  const Transformer& model_;
  const World& world_;
  std::map<Key, Coming> activations_, gradients_;
  std::map<Key, Flight> flights_;
  std::map<Key, std::unique_ptr<ops::WeightGradients>> put_off_;
  bool apart_ = false;
  std::vector<Pending> sent_;
  Traffic traffic_;
};

}  // namespace hero
