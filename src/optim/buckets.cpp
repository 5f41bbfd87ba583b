#include "optim/buckets.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "ops/autograd.h"

namespace hero {
namespace {

// Elements per bucket: large enough for bandwidth, small enough to start reducing early.
constexpr int64_t kBucketSize = int64_t{1} << 22;

}  // namespace

struct Buckets::Bucket {
  const Group* group;
  std::vector<size_t> parameters;
  std::vector<int64_t> offsets;  // of each parameter
  int64_t filled = 0, size = 0;  // elements; size is padded to a multiple of the group's size
  at::Tensor leaves;             // [size] in the leaves' dtype
  at::Tensor master_values;      // [size / ranks] in the gradients' dtype, this rank's shard
  at::Tensor gradients;          // reduced, shaped like master_values
  int64_t incomplete = 0;        // parameters whose gradients are not complete
  AsyncWork pending;

  int64_t shard_size() const { return size / group->size(); }
  int64_t shard_begin() const { return shard_size() * group->rank(); }
};

Buckets::Buckets(Parameters& parameters, const Group& data, const Group& replica)
    : parameters_(parameters),
      data_(data),
      replica_(replica),
      bucket_of_(parameters.all().size(), -1),
      pending_(parameters.all().size(), 0) {
  const at::NoGradGuard no_grad;
  auto& all = parameters.all();
  // In reverse order: the last layers' gradients are complete first.
  for (size_t i = all.size(); i-- > 0;) {
    const auto& p = all[i];
    const Group& group = group_of(i);
    if (group.size() == 1 || !p.leaf.requires_grad()) continue;
    Bucket* open = nullptr;
    for (auto& bucket : buckets_) {
      const auto type = all[bucket->parameters[0]].leaf.scalar_type();
      if (bucket->group == &group && type == p.leaf.scalar_type() && bucket->filled < kBucketSize)
        open = bucket.get();
    }
    if (!open) {
      buckets_.push_back(std::make_unique<Bucket>());
      open = buckets_.back().get();
      open->group = &group;
    }
    open->parameters.push_back(i);
    open->offsets.push_back(open->filled);
    open->filled += p.leaf.numel();
  }
  for (size_t b = 0; b < buckets_.size(); ++b) {
    Bucket& bucket = *buckets_[b];
    const int64_t ranks = bucket.group->size();
    bucket.size = (bucket.filled + ranks - 1) / ranks * ranks;
    const auto& first = all[bucket.parameters[0]];
    bucket.leaves = at::zeros({bucket.size}, first.leaf.options().requires_grad(false));
    auto values = at::zeros({bucket.size}, first.values.options());
    for (size_t k = 0; k < bucket.parameters.size(); ++k) {
      auto& p = all[bucket.parameters[k]];
      bucket_of_[bucket.parameters[k]] = static_cast<int64_t>(b);
      const int64_t begin = bucket.offsets[k], end = begin + p.leaf.numel();
      const auto view = bucket.leaves.slice(0, begin, end).view(p.leaf.sizes());
      values.slice(0, begin, end).copy_(p.values.view({-1}));
      view.copy_(p.leaf);
      const bool narrow = p.leaf.scalar_type() != p.values.scalar_type();
      p.leaf.set_data(view);
      p.values = narrow ? at::Tensor() : view;
      ops::set_post_accumulate_grad_hook(p.leaf,
                                         [this, parameter = bucket.parameters[k]] { mark_ready(parameter); });
      parameter_of_[p.leaf.unsafeGetTensorImpl()] = bucket.parameters[k];
    }
    const bool narrow = first.leaf.scalar_type() != values.scalar_type();
    const int64_t begin = bucket.shard_begin(), end = begin + bucket.shard_size();
    const auto shard = (narrow ? values : bucket.leaves).slice(0, begin, end);
    bucket.master_values = narrow ? shard.clone() : shard;
  }
}

Buckets::~Buckets() {
  for (size_t i = 0; i < bucket_of_.size(); ++i) {
    if (contains(i)) ops::set_post_accumulate_grad_hook(parameters_.all()[i].leaf, nullptr);
  }
}

std::vector<ParameterShard> Buckets::shards() const {
  std::vector<ParameterShard> shards;
  for (const auto& bucket : buckets_) {
    const int64_t first = bucket->shard_begin(), last = first + bucket->shard_size();
    for (size_t k = 0; k < bucket->parameters.size(); ++k) {
      const size_t parameter = bucket->parameters[k];
      const int64_t offset = bucket->offsets[k], begin = std::max(first, offset),
                    end = std::min(last, offset + parameters_.all()[parameter].leaf.numel());
      if (begin >= end) continue;
      shards.push_back({.parameter = parameter,
                        .begin = begin - offset,
                        .end = end - offset,
                        .values = bucket->master_values.slice(0, begin - first, end - first),
                        .exp_avg = {},
                        .exp_avg_sq = {}});
    }
  }
  return shards;
}

void Buckets::prepare_for_backward(int64_t passes, bool recompute) {
  for (size_t i = 0; i < pending_.size(); ++i)
    pending_[i] = contains(i) ? passes * (recompute ? parameters_.all()[i].uses : 1) : 0;
  for (auto& bucket : buckets_) bucket->incomplete = static_cast<int64_t>(bucket->parameters.size());
  next_ = 0;
}

void Buckets::expect_deferred_gradient(const at::Tensor& leaf) {
  const auto found = parameter_of_.find(leaf.unsafeGetTensorImpl());
  if (found != parameter_of_.end()) ++pending_[found->second];
}

void Buckets::mark_deferred_ready(const at::Tensor& leaf) {
  const auto found = parameter_of_.find(leaf.unsafeGetTensorImpl());
  if (found != parameter_of_.end()) mark_ready(found->second);
}

void Buckets::mark_ready(size_t parameter) {
  // A contribution after the reduce-scatter has started would be lost.
  TORCH_INTERNAL_ASSERT(pending_[parameter] > 0, parameters_.all()[parameter].name);
  if (--pending_[parameter] != 0) return;
  --buckets_[bucket_of_[parameter]]->incomplete;
  // All ranks must launch collectives in the same order.
  while (next_ < buckets_.size() && buckets_[next_]->incomplete == 0)
    start_reduce_scatter(*buckets_[next_++]);
}

void Buckets::start_reduce_scatter(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  const auto local = at::zeros({bucket.size}, bucket.master_values.options());
  std::vector<at::Tensor> to, from;
  for (size_t k = 0; k < bucket.parameters.size(); ++k) {
    auto& gradient = parameters_.all()[bucket.parameters[k]].leaf.mutable_grad();
    if (!gradient.defined()) continue;
    to.push_back(local.slice(0, bucket.offsets[k], bucket.offsets[k] + gradient.numel()));
    from.push_back(gradient.view({-1}));
    gradient = at::Tensor();
  }
  if (!to.empty()) at::_foreach_copy_(to, from);
  bucket.gradients = at::empty_like(bucket.master_values);
  bucket.pending = bucket.group->reduce_scatter(bucket.gradients, local);
}

void Buckets::finish() {
  while (next_ < buckets_.size()) start_reduce_scatter(*buckets_[next_++]);
  for (auto& bucket : buckets_) bucket->pending.wait();
}

at::Tensor Buckets::gradient(const ParameterShard& shard) const {
  const Bucket& bucket = *buckets_[bucket_of_[shard.parameter]];
  // Shards are views of master_values: gradients have the same offset as values.
  const int64_t begin = shard.values.storage_offset() - bucket.master_values.storage_offset();
  return bucket.gradients.slice(0, begin, begin + shard.values.numel());
}

void Buckets::all_gather_values() {
  const at::NoGradGuard no_grad;
  std::vector<AsyncWork> all_pending;
  for (auto& bucket : buckets_) {
    const auto type = bucket->leaves.scalar_type();
    const auto shard = bucket->master_values.to(type, /*non_blocking=*/false, /*copy=*/true);
    all_pending.push_back(bucket->group->all_gather(bucket->leaves, shard));
    bucket->gradients = at::Tensor();
  }
  for (auto& pending : all_pending) pending.wait();
}

}  // namespace hero
