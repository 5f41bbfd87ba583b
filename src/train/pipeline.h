#pragma once
// Runs a pipeline rank's actions of a schedule. Exchanges activations, routing history and gradients with the
// previous and next ranks by point-to-point messages. The first rank sends the embedded tokens to the last
// one if its multi-token prediction modules need them. Sends start as soon as the tensors exist; receives are
// posted in advance.
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "distributed/world.h"
#include "model/transformer.h"
#include "ops/deferred.h"
#include "train/schedule.h"

namespace hero {

/// A micro-batch of a step; all pipeline ranks with the same data rank have it.
struct MicroBatch {
  at::Tensor samples;  ///< [B, S+1] int64 on the model's device
  ForwardContext position;
  at::Tensor labels = {};  ///< [B, S+1]: samples with -1 for tokens that are no targets; undefined: samples
};

class Pipeline {
 public:
  /// Both must outlive the Pipeline.
  Pipeline(const Transformer& model, const World& world);

  using Read = std::function<const MicroBatch&(int64_t micro_batch)>;
  /// A chunk's contribution to the loss, weighted by the micro-batch's share of the step (undefined: none),
  /// and its Losses::mass_T. Receives mass_T of the previous chunk.
  struct ChunkLoss {
    at::Tensor total, mass_T;
  };
  using Loss = std::function<ChunkLoss(const ModelChunk&, const Transformer::Output&, const MicroBatch&,
                                       const at::Tensor& mass_T)>;
  /// Callbacks that track deferred weight gradients.
  struct DeferralHooks {
    std::function<void(const at::Tensor& leaf)> on_deferred;  ///< in an input_gradient pass
    std::function<void(const at::Tensor& leaf)> on_added;     ///< in a weight_gradient pass
  };
  /// Accumulates gradients in the model's leaves. If the schedule splits backward passes, `hooks` are called
  /// for each leaf once per micro-batch when its gradient is deferred and when it has been added.
  void run(const std::vector<Action>& actions, const Read& read, const Loss& loss,
           const DeferralHooks& hooks);

  using Output = std::function<void(const Transformer::Output&, const MicroBatch&)>;
  /// Forward passes without gradients, with the whole history (no parallel.history_top). On the rank of the
  /// model's last chunk, `on_output` receives its output for every micro-batch.
  void evaluate(const std::vector<Action>& actions, const Read& read, const Output& on_output);

  /// Bytes that this rank sent in the last run, and seconds spent on history messages.
  struct Traffic {
    int64_t activations = 0;  ///< including embeddings, top-k masses for R_cp and the gradients of all three
    int64_t history = 0;
    double history_seconds = 0;  ///< packing, sending, unpacking; excludes waiting
  };
  const Traffic& traffic() const { return traffic_; }

 private:
  using Key = std::pair<int64_t, int64_t>;  // chunk, micro-batch
  struct PendingReceive {
    at::Tensor x, mass_T, embedded;
    AsyncWork x_work, mass_work, embedded_work;
    std::vector<std::pair<int64_t, at::Tensor>> history;  // layer, message
    std::vector<AsyncWork> history_work;
  };
  struct InFlightOperation {
    at::Tensor input, output, loss;
    at::Tensor embedded;           ///< of the first chunk and the last one; undefined without modules
    at::Tensor mass_in, mass_out;  ///< [T]; undefined if R_cp does not need it
    std::unique_ptr<ops::WeightGradientQueue> deferred;  ///< if the schedule splits backward passes
  };

  /// Posts the receives for an action's inputs from other ranks.
  void post_receives(const Action& action, const MicroBatch& batch);
  void forward(const Action& action, const MicroBatch& batch, const Loss& loss, const DeferralHooks& hooks);
  /// Computes input gradients, and weight gradients unless the schedule splits backward passes.
  void backward(const Action& action);
  /// History entries per layer in a message; 0: all.
  int64_t message_top() const;
  /// Waits until at most `window` actions have sends that may be incomplete.
  void finish_sends(size_t window);
  void send(const at::Tensor& t, int64_t from_chunk, int64_t to_chunk);
  /// Sends the embedded tokens from the first rank to the last, or their gradient back.
  void send_embedded(const at::Tensor& t, Channel channel, int64_t to_rank);
  /// Whether R_cp couples MoE layers across the boundary before MoE layer `first_layer_after`.
  bool has_coupling_across(int64_t first_layer_after) const;
  const Group& channel(int64_t from_chunk, int64_t to_chunk) const;
  int64_t rank_of(int64_t chunk) const { return chunk % world_.mesh().pipeline; }
  int64_t last_rank() const { return world_.mesh().pipeline - 1; }
  size_t local_index(int64_t chunk) const { return static_cast<size_t>(chunk / world_.mesh().pipeline); }

  const Transformer& model_;
  const World& world_;
  std::map<Key, PendingReceive> activations_, gradients_;
  std::map<Key, InFlightOperation> in_flight_;
  std::map<Key, std::unique_ptr<ops::WeightGradientQueue>> deferred_;
  bool splits_backward_ = false, evaluating_ = false;
  size_t action_ = 0;                              // that runs
  std::deque<std::pair<size_t, AsyncWork>> sent_;  // with the action of each
  Traffic traffic_;
};

}  // namespace hero
