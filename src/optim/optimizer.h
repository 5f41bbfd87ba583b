#pragma once
// Updates the fp32 master values of all parameters with AdamW (arXiv 1711.05101), or hidden matrices with
// Muon (muon.h). Only non_finite_gradient() synchronizes with the GPU.
#include "config/config.h"
#include "optim/buckets.h"
#include "optim/state_storage.h"
#include "optim/update_groups.h"

namespace hero {

class Optimizer {
 public:
  /// Single process: it owns all parameters.
  Optimizer(Parameters& parameters, const OptimConfig& config);
  /// Optimizer state and values sharded as in Buckets. Load the weights first.
  Optimizer(Parameters& parameters, const OptimConfig& config, const Group& data, const Group& replica);

  /// Gradients that are reduced over ranks; null for a single process.
  Buckets* buckets() { return buckets_.get(); }

  /// Sum of squares over the gradients of this rank's shards (ops::sum_of_squares): a scalar on the
  /// parameters' device. Parameters without a gradient count as 0.
  at::Tensor squared_gradient_norm() const;

  /// Name of the first parameter on this rank whose gradient is not finite, "" if none.
  std::string non_finite_gradient() const;

  /// Clips the gradients, whose global norm is `norm`, to config.clip_norm (0: no clipping), updates the
  /// values with learning rate `lr` and copies them to the leaves. Skips the update if the norm is not
  /// finite. `step` counts from 1 (bias correction).
  void step(int64_t step, double lr, const at::Tensor& norm);

  /// Call before the next step's backward passes. `keep`: zero the tensors instead of freeing them.
  void zero_grad(bool keep = false);

  const std::vector<ParameterShard>& shards() const { return shards_; }
  /// The shard's gradient, flattened; undefined if there is none.
  at::Tensor gradient(const ParameterShard& shard) const;

 private:
  struct Clipping;
  Optimizer(Parameters& parameters, const OptimConfig& config, const StateStorage& storage, const Group& data,
            const Group& replica);
  Optimizer(Parameters& parameters, const OptimConfig& config, const StateStorage& storage,
            std::unique_ptr<Buckets> buckets);
  /// The weights that operators read, flattened, if this rank writes them; undefined if the values are the
  /// leaf or all_gather_values updates it.
  at::Tensor separate_leaf(const ParameterShard& shard) const;
  void step_adamw(const AdamWGroup& group, double lr, const Clipping& clipping);
  void step_muon(const MuonBatch& batch, double lr, const Clipping& clipping);

  Parameters* parameters_;
  OptimConfig config_;
  at::Tensor step_;  ///< fp32 scalar on the parameters' device
  std::unique_ptr<Buckets> buckets_;
  std::vector<ParameterShard> shards_;
  std::vector<AdamWGroup> adamw_;
  std::vector<MuonBatch> muon_;
};

}  // namespace hero
