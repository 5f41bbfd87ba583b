#include "optim/buckets.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "ops/autograd.h"

namespace hero {
namespace {

// Elements per bucket: large enough for bandwidth, small enough to start reducing early.
constexpr int64_t kBucketSize = int64_t{1} << 22;

}  // namespace

// Elements [begin, end) of a parameter, at `position` in the bucket's gradients and values.
struct Buckets::Segment {
  size_t parameter;
  int64_t begin, end, position;
  int64_t size() const { return end - begin; }
};

struct Buckets::Bucket {
  const Group* group;
  bool whole;  // shards consist of whole segments, and the leaves have a buffer of another layout
  std::vector<size_t> parameters;
  std::vector<Segment> segments;
  int64_t filled = 0, size = 0;  // elements; size is a multiple of the group's size
  at::Tensor leaves;             // the leaves' dtype: [filled] if whole, otherwise [size]
  at::Tensor master_values;      // [size / ranks] in the gradients' dtype, this rank's shard
  at::Tensor gradients;          // reduced, shaped like master_values
  int64_t incomplete = 0;        // parameters whose gradients are not complete
  AsyncWork pending;

  int64_t shard_size() const { return size / group->size(); }
  int64_t shard_begin() const { return shard_size() * group->rank(); }
};

Buckets::Buckets(Parameters& parameters, const Group& data, const Group& replica, const StateStorage& storage,
                 const std::function<bool(const Parameter&)>& whole)
    : parameters_(parameters),
      data_(data),
      replica_(replica),
      bucket_of_(parameters.all().size(), -1),
      pending_(parameters.all().size(), 0) {
  const at::NoGradGuard no_grad;
  const auto& all = parameters.all();
  // In reverse order: the last layers' gradients are complete first.
  for (size_t i = all.size(); i-- > 0;) {
    if (group_of(i).size() == 1 || !all[i].leaf.requires_grad()) continue;
    Bucket& open = open_bucket(i, whole(all[i]));
    open.parameters.push_back(i);
    open.filled += all[i].leaf.numel();
  }
  for (size_t b = 0; b < buckets_.size(); ++b) {
    for (const size_t parameter : buckets_[b]->parameters) bucket_of_[parameter] = static_cast<int64_t>(b);
    assign(*buckets_[b]);
    create_buffers(*buckets_[b], storage);
  }
}

// The bucket for the next parameter.
Buckets::Bucket& Buckets::open_bucket(size_t parameter, bool whole) {
  const auto& all = parameters_.all();
  const Group& group = group_of(parameter);
  for (auto& bucket : buckets_) {
    const auto type = all[bucket->parameters[0]].leaf.scalar_type();
    if (bucket->group == &group && bucket->whole == whole && type == all[parameter].leaf.scalar_type() &&
        bucket->filled < kBucketSize)
      return *bucket;
  }
  buckets_.push_back(std::make_unique<Bucket>());
  buckets_.back()->group = &group;
  buckets_.back()->whole = whole;
  return *buckets_.back();
}

// Sets the segments and the size. Whole parts go to ranks in order, each to the rank in whose equal share its
// middle is, so that adjacent matrices stay together.
void Buckets::assign(Bucket& bucket) const {
  const int64_t ranks = bucket.group->size();
  int64_t offset = 0;  // in the parameters, one after the other
  if (!bucket.whole) {
    for (const size_t p : bucket.parameters) {
      const int64_t size = parameters_.all()[p].leaf.numel();
      bucket.segments.push_back({.parameter = p, .begin = 0, .end = size, .position = offset});
      offset += size;
    }
    bucket.size = (bucket.filled + ranks - 1) / ranks * ranks;
    return;
  }
  std::vector<int64_t> filled(static_cast<size_t>(ranks), 0), rank_of;
  for (const size_t p : bucket.parameters) {
    const auto& parameter = parameters_.all()[p];
    for (size_t k = 0; k < parameter.parts.size(); ++k) {
      const int64_t begin = parameter.parts[k].offset;
      const int64_t end =
          k + 1 < parameter.parts.size() ? parameter.parts[k + 1].offset : parameter.leaf.numel();
      const int64_t rank = (2 * offset + end - begin) * ranks / (2 * bucket.filled);
      bucket.segments.push_back({.parameter = p, .begin = begin, .end = end, .position = filled[rank]});
      rank_of.push_back(rank);
      filled[rank] += end - begin;
      offset += end - begin;
    }
  }
  const int64_t shard = *std::ranges::max_element(filled);
  for (size_t k = 0; k < rank_of.size(); ++k) bucket.segments[k].position += rank_of[k] * shard;
  bucket.size = shard * ranks;
}

// Moves the leaves into a buffer and sets this rank's values.
void Buckets::create_buffers(Bucket& bucket, const StateStorage& storage) {
  auto& all = parameters_.all();
  const auto& first = all[bucket.parameters[0]];
  const bool narrow = first.leaf.scalar_type() != first.values.scalar_type();
  auto values = at::zeros({bucket.size}, first.values.options());
  for (const Segment& segment : bucket.segments) {
    const auto part = all[segment.parameter].values.view({-1}).slice(0, segment.begin, segment.end);
    values.slice(0, segment.position, segment.position + segment.size()).copy_(part);
  }
  bucket.leaves =
      at::zeros({bucket.whole ? bucket.filled : bucket.size}, first.leaf.options().requires_grad(false));
  int64_t offset = 0;
  for (const size_t parameter : bucket.parameters) {
    auto& p = all[parameter];
    const auto view = bucket.leaves.slice(0, offset, offset + p.leaf.numel()).view(p.leaf.sizes());
    offset += p.leaf.numel();
    view.copy_(p.leaf);
    p.leaf.set_data(view);
    p.values = narrow ? at::Tensor() : view;
    ops::set_post_accumulate_grad_hook(p.leaf, [this, parameter] { mark_ready(parameter); });
    parameter_of_[p.leaf.unsafeGetTensorImpl()] = parameter;
  }
  const int64_t begin = bucket.shard_begin(), end = begin + bucket.shard_size();
  const bool separate = narrow || bucket.whole;
  const auto shard = (separate ? values : bucket.leaves).slice(0, begin, end);
  bucket.master_values = separate ? storage.copy_of(shard) : shard;
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
    int64_t adjacent = -1;  // position after the bucket's last shard
    for (const Segment& segment : bucket->segments) {
      const int64_t position = segment.position, begin = std::max(first, position),
                    end = std::min(last, position + segment.size());
      if (begin >= end) continue;
      const bool follows = adjacent == begin && shards.back().parameter == segment.parameter &&
                           shards.back().end == segment.begin;
      if (!follows)
        shards.push_back({.parameter = segment.parameter, .begin = segment.begin + begin - position});
      auto& shard = shards.back();
      shard.end = segment.begin + end - position;
      shard.values = bucket->master_values.slice(0, end - first - (shard.end - shard.begin), end - first);
      adjacent = end;
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
  for (const Segment& segment : bucket.segments) {
    const auto& gradient = parameters_.all()[segment.parameter].leaf.grad();
    if (!gradient.defined()) continue;
    to.push_back(local.slice(0, segment.position, segment.position + segment.size()));
    from.push_back(gradient.view({-1}).slice(0, segment.begin, segment.end));
  }
  if (!to.empty()) at::_foreach_copy_(to, from);
  for (const size_t parameter : bucket.parameters)
    parameters_.all()[parameter].leaf.mutable_grad() = at::Tensor();
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
  std::vector<at::Tensor> gathered;
  for (auto& bucket : buckets_) {
    const auto type = bucket->leaves.scalar_type();
    const auto shard = bucket->master_values.to(type, /*non_blocking=*/false, /*copy=*/true);
    gathered.push_back(bucket->whole ? at::empty({bucket->size}, bucket->leaves.options()) : bucket->leaves);
    all_pending.push_back(bucket->group->all_gather(gathered.back(), shard));
    bucket->gradients = at::Tensor();
  }
  for (auto& pending : all_pending) pending.wait();
  std::vector<at::Tensor> to, from;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (!buckets_[b]->whole) continue;
    for (const Segment& segment : buckets_[b]->segments) {
      const auto leaf = parameters_.all()[segment.parameter].leaf.detach().view({-1});
      to.push_back(leaf.slice(0, segment.begin, segment.end));
      from.push_back(gathered[b].slice(0, segment.position, segment.position + segment.size()));
    }
  }
  if (!to.empty()) at::_foreach_copy_(to, from);
}

}  // namespace hero
