#include "ops/deferred.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "ops/differentiable.h"

namespace hero::ops {
namespace {

thread_local WeightGradientQueue* active_queue = nullptr;
thread_local bool accumulating = false;

constexpr const char *kQueueKey = "weight_gradients", *kAccumulateKey = "accumulate";

struct SavedQueue : torch::CustomClassHolder {
  explicit SavedQueue(WeightGradientQueue* q) : queue(q) {}
  WeightGradientQueue* queue;
};

}  // namespace

void WeightGradientQueue::add(const at::Tensor& weight, std::function<at::Tensor()> compute) {
  const bool first =
      std::ranges::none_of(entries_, [&](const Entry& entry) { return entry.weight.is_same(weight); });
  entries_.push_back({weight, std::move(compute)});
  if (first && deferred_) deferred_(weight);
}

void WeightGradientQueue::run(const std::function<void(const at::Tensor& weight)>& done) {
  const at::NoGradGuard no_grad;
  auto entries = std::exchange(entries_, {});
  std::unordered_map<const void*, int64_t> remaining;
  for (const auto& entry : entries) ++remaining[entry.weight.unsafeGetTensorImpl()];
  for (auto& [weight, compute] : entries) {
    auto gradient = compute();
    compute = nullptr;  // releases the operands
    auto& grad = weight.mutable_grad();
    if (grad.defined()) {
      grad.add_(gradient);
    } else {
      grad = std::move(gradient);
    }
    if (--remaining[weight.unsafeGetTensorImpl()] == 0 && done) done(weight);
  }
}

DeferWeightGradients::DeferWeightGradients(WeightGradientQueue* queue)
    : previous_(std::exchange(active_queue, queue)) {}

DeferWeightGradients::~DeferWeightGradients() { active_queue = previous_; }

WeightGradientQueue* DeferWeightGradients::queue() { return active_queue; }

// The autograd engine runs CUDA backward passes on its own threads, so the queue is saved in the graph.
void save_queue(torch::autograd::AutogradContext* ctx) {
  if (active_queue)
    ctx->saved_data[kQueueKey] = c10::IValue::make_capsule(c10::make_intrusive<SavedQueue>(active_queue));
}

WeightGradientQueue* saved_queue(const torch::autograd::AutogradContext* ctx) {
  const auto saved = ctx->saved_data.find(kQueueKey);
  return saved == ctx->saved_data.end() ? nullptr
                                        : static_cast<SavedQueue&>(*saved->second.toCapsule()).queue;
}

AccumulateWeightGradients::AccumulateWeightGradients(bool active)
    : previous_(std::exchange(accumulating, active)) {}

AccumulateWeightGradients::~AccumulateWeightGradients() { accumulating = previous_; }

void save_accumulation(torch::autograd::AutogradContext* ctx) {
  if (accumulating) ctx->saved_data[kAccumulateKey] = true;
}

bool accumulates(const torch::autograd::AutogradContext* ctx) {
  return ctx->saved_data.find(kAccumulateKey) != ctx->saved_data.end();
}

bool can_accumulate(const torch::autograd::AutogradContext* ctx, const at::Tensor& weight) {
  return accumulates(ctx) && !saved_queue(ctx) && weight.is_leaf() && weight.grad().defined();
}

}  // namespace hero::ops
