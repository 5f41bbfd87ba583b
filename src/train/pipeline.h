#pragma once
// A pipeline rank's part of a step: carries out its actions of a schedule, and passes activations, routing
// history and gradients to the ranks before and behind it. Nothing is sent later than it is made, and what
// will be needed next is asked for in advance.
#include <functional>
#include <map>

#include "model/transformer.h"
#include "parallel/schedule.h"
#include "parallel/world.h"

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
  /// What a chunk adds to the loss, times the micro-batch's share of the step; undefined: nothing.
  using Loss = std::function<at::Tensor(const Chunk&, const Transformer::Output&, const MicroBatch&)>;
  /// Gradients add up in the model's leaves. `done(leaf)` says that one was added by a pass for weights
  /// alone.
  void run(const std::vector<Action>& actions, const Read& read, const Loss& loss,
           const std::function<void(const at::Tensor& leaf)>& done);

  /// Bytes of history that this rank sent in the last run, and of activations with their gradients.
  int64_t history_bytes() const { return history_bytes_; }
  int64_t activation_bytes() const { return activation_bytes_; }

 private:
  using Key = std::pair<int64_t, int64_t>;  // chunk, micro-batch
  struct Coming {
    at::Tensor x;
    Pending x_pending;
    std::vector<std::pair<int64_t, at::Tensor>> history;  // layer, message
    std::vector<Pending> history_pending;
  };
  struct Flight {
    at::Tensor input, output, loss;
  };

  void ask(const Action& action, const MicroBatch& batch);
  void forward(const Action& action, const MicroBatch& batch, const Loss& loss);
  void backward(const Action& action);
  void send(const at::Tensor& t, int64_t from_chunk, int64_t to_chunk);
  const Group& lane(int64_t from_chunk, int64_t to_chunk) const;
  int64_t rank_of(int64_t chunk) const { return chunk % world_.mesh().pipeline; }
  size_t held(int64_t chunk) const { return static_cast<size_t>(chunk / world_.mesh().pipeline); }

  const Transformer& model_;
  const World& world_;
  std::map<Key, Coming> activations_, gradients_;
  std::map<Key, Flight> flights_;
  std::vector<Pending> sent_;
  int64_t history_bytes_ = 0, activation_bytes_ = 0;
};

}  // namespace hero
