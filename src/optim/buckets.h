#pragma once
// Data-parallel gradient buckets with sharded optimizer state (ZeRO-1, arXiv 1910.02054): each bucket is a
// flat buffer of parameters, split into equal shards, one per rank. A bucket's reduce-scatter starts as soon
// as its gradients are complete and overlaps with the backward pass; each rank updates its shard, and an
// all-gather distributes the new weights. A bucket of matrices that their optimizer needs whole assigns every
// part of a parameter to one rank; its shards are padded to the size of the largest.
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "distributed/group.h"
#include "model/parameters.h"
#include "optim/parameter_shard.h"
#include "optim/state_storage.h"

namespace hero {

class Buckets {
 public:
  /// Moves the leaves of parameters that `data` (for experts `replica`) ranks replicate into flat buffers. If
  /// leaves have a narrower dtype, releases Parameter::values; the shards hold this rank's part of them.
  /// Groups of one rank have no buckets. Both groups must outlive the object. `storage`: of shards that are
  /// not part of a leaf. `whole`: shards contain whole parts of the parameter.
  Buckets(Parameters& parameters, const Group& data, const Group& replica, const StateStorage& storage,
          const std::function<bool(const Parameter&)>& whole);
  ~Buckets();
  Buckets(const Buckets&) = delete;

  bool contains(size_t parameter) const { return bucket_of_[parameter] >= 0; }
  /// Whether this is the first of the ranks that replicate the parameter.
  bool is_first_rank_of(size_t parameter) const { return group_of(parameter).rank() == 0; }
  /// This rank's shards, without moments.
  std::vector<ParameterShard> shards() const;

  /// Call before a step's backward passes. A gradient is complete after `passes` contributions, one per
  /// backward pass, each counted when the autograd engine visits the leaf. With `recompute` every layer that
  /// reads the leaf has a backward pass of its own.
  void prepare_for_backward(int64_t passes, bool recompute);
  /// A backward pass defers its contribution to this leaf, so that one more is expected: the engine still
  /// visits the leaf.
  void expect_deferred_gradient(const at::Tensor& leaf);
  /// A deferred contribution was added to this leaf's gradient.
  void mark_deferred_ready(const at::Tensor& leaf);
  /// After the last backward pass: waits for all reduce-scatters.
  void finish();
  /// The reduced gradient of a shard, after finish().
  at::Tensor gradient(const ParameterShard& shard) const;

  /// All-gathers the shards' new values into all ranks' leaves.
  void all_gather_values();

 private:
  struct Segment;
  struct Bucket;
  Bucket& open_bucket(size_t parameter, bool whole);
  void assign(Bucket& bucket) const;
  void create_buffers(Bucket& bucket, const StateStorage& storage);
  const Group& group_of(size_t parameter) const {
    return parameters_.all()[parameter].expert ? replica_ : data_;
  }
  void mark_ready(size_t parameter);
  void start_reduce_scatter(Bucket& bucket);

  Parameters& parameters_;
  const Group &data_, &replica_;
  std::vector<int64_t> bucket_of_;                        // per parameter; -1: not in a bucket
  std::unordered_map<const void*, size_t> parameter_of_;  // leaves in buckets
  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::vector<int64_t> pending_;  // per parameter: outstanding contributions
  size_t next_ = 0;               // first bucket whose reduce-scatter has not started
};

}  // namespace hero
