#include "optim/buckets.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace hero {
namespace {

// Elements of a bucket: large enough for the network, small enough that sums begin early.
constexpr int64_t kBucketSize = int64_t{1} << 22;

struct Hook : torch::autograd::PostAccumulateGradHook {
  explicit Hook(std::function<void()> f) : call(std::move(f)) {}
  void operator()(const torch::autograd::Variable&) override { call(); }
  std::function<void()> call;
};

}  // namespace

struct Buckets::Bucket {
  const Group* group;
  std::vector<size_t> parameters;
  std::vector<int64_t> offsets;  // of each
  int64_t filled = 0, size = 0;  // elements; size is a multiple of the group's
  at::Tensor leaves;             // [size] in the leaves' type
  at::Tensor masters;            // [size / ranks] in the sums' type, this rank's
  at::Tensor sums;               // gradients, shaped like masters
  int64_t missing = 0;           // parameters whose gradients are not complete
  Pending under_way;

  int64_t share() const { return size / group->size(); }
  int64_t first() const { return share() * group->rank(); }
};

Buckets::Buckets(Parameters& parameters, const Group& data, const Group& replica)
    : parameters_(parameters),
      data_(data),
      replica_(replica),
      bucket_of_(parameters.all().size(), -1),
      owed_(parameters.all().size(), 0) {
  const at::NoGradGuard no_grad;
  auto& all = parameters.all();
  // Backwards: the last layers' gradients are complete first.
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
      const auto place = bucket.leaves.slice(0, begin, end).view(p.leaf.sizes());
      values.slice(0, begin, end).copy_(p.values.view({-1}));
      place.copy_(p.leaf);
      const bool narrow = p.leaf.scalar_type() != p.values.scalar_type();
      p.leaf.set_data(place);
      p.values = narrow ? at::Tensor() : place;
      torch::autograd::impl::set_post_acc_grad_hooks(
          p.leaf,
          std::make_unique<Hook>([this, parameter = bucket.parameters[k]] { contributed(parameter); }));
      parameter_of_[p.leaf.unsafeGetTensorImpl()] = bucket.parameters[k];
    }
    const bool narrow = first.leaf.scalar_type() != values.scalar_type();
    const auto mine =
        (narrow ? values : bucket.leaves).slice(0, bucket.first(), bucket.first() + bucket.share());
    bucket.masters = narrow ? mine.clone() : mine;
  }
}

Buckets::~Buckets() {
  for (size_t i = 0; i < bucket_of_.size(); ++i) {
    if (holds(i)) torch::autograd::impl::set_post_acc_grad_hooks(parameters_.all()[i].leaf, nullptr);
  }
}

std::vector<Piece> Buckets::pieces() const {
  std::vector<Piece> pieces;
  for (const auto& bucket : buckets_) {
    const int64_t first = bucket->first(), last = first + bucket->share();
    for (size_t k = 0; k < bucket->parameters.size(); ++k) {
      const size_t parameter = bucket->parameters[k];
      const int64_t offset = bucket->offsets[k], begin = std::max(first, offset),
                    end = std::min(last, offset + parameters_.all()[parameter].leaf.numel());
      if (begin >= end) continue;
      pieces.push_back({.parameter = parameter,
                        .begin = begin - offset,
                        .end = end - offset,
                        .values = bucket->masters.slice(0, begin - first, end - first),
                        .exp_avg = {},
                        .exp_avg_sq = {}});
    }
  }
  return pieces;
}

void Buckets::expect(int64_t passes) {
  for (size_t i = 0; i < owed_.size(); ++i) owed_[i] = holds(i) ? passes : 0;
  for (auto& bucket : buckets_) bucket->missing = static_cast<int64_t>(bucket->parameters.size());
  next_ = 0;
}

void Buckets::expect_deferred(const at::Tensor& leaf) {
  const auto found = parameter_of_.find(leaf.unsafeGetTensorImpl());
  if (found != parameter_of_.end()) ++owed_[found->second];
}

void Buckets::add_deferred(const at::Tensor& leaf) {
  const auto found = parameter_of_.find(leaf.unsafeGetTensorImpl());
  if (found != parameter_of_.end()) contributed(found->second);
}

void Buckets::contributed(size_t parameter) {
  // One that comes after the sum has begun would be lost.
  TORCH_INTERNAL_ASSERT(owed_[parameter] > 0, parameters_.all()[parameter].name);
  if (--owed_[parameter] != 0) return;
  --buckets_[bucket_of_[parameter]]->missing;
  // In one order on all ranks.
  while (next_ < buckets_.size() && buckets_[next_]->missing == 0) launch(*buckets_[next_++]);
}

void Buckets::launch(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  const auto sums = at::zeros({bucket.size}, bucket.masters.options());
  std::vector<at::Tensor> to, from;
  for (size_t k = 0; k < bucket.parameters.size(); ++k) {
    auto& gradient = parameters_.all()[bucket.parameters[k]].leaf.mutable_grad();
    if (!gradient.defined()) continue;
    to.push_back(sums.slice(0, bucket.offsets[k], bucket.offsets[k] + gradient.numel()));
    from.push_back(gradient.view({-1}));
    gradient = at::Tensor();
  }
  if (!to.empty()) at::_foreach_copy_(to, from);
  bucket.sums = at::empty_like(bucket.masters);
  bucket.under_way = bucket.group->reduce_scatter(bucket.sums, sums);
}

void Buckets::finish() {
  while (next_ < buckets_.size()) launch(*buckets_[next_++]);
  for (auto& bucket : buckets_) bucket->under_way.wait();
}

at::Tensor Buckets::gradient(const Piece& piece) const {
  const Bucket& bucket = *buckets_[bucket_of_[piece.parameter]];
  // Pieces are views of the masters: the gradient lies where the values do.
  const int64_t begin = piece.values.storage_offset() - bucket.masters.storage_offset();
  return bucket.sums.slice(0, begin, begin + piece.values.numel());
}

void Buckets::spread() {
  const at::NoGradGuard no_grad;
  std::vector<Pending> under_way;
  for (auto& bucket : buckets_) {
    const auto mine = bucket->masters.to(bucket->leaves.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    under_way.push_back(bucket->group->all_gather(bucket->leaves, mine));
    bucket->sums = at::Tensor();
  }
  for (auto& pending : under_way) pending.wait();
}

}  // namespace hero
