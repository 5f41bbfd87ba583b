#include "ops/deferred.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace hero::ops {
namespace {

thread_local WeightGradients* in_force = nullptr;

constexpr const char* kNote = "weight_gradients";

struct Note : torch::CustomClassHolder {
  explicit Note(WeightGradients* q) : queue(q) {}
  WeightGradients* queue;
};

}  // namespace

void WeightGradients::add(const at::Tensor& weight, std::function<at::Tensor()> make) {
  const bool first =
      std::ranges::none_of(entries_, [&](const Entry& entry) { return entry.weight.is_same(weight); });
  entries_.push_back({weight, std::move(make)});
  if (first && deferred_) deferred_(weight);
}

void WeightGradients::run(const std::function<void(const at::Tensor& weight)>& done) {
  const at::NoGradGuard no_grad;
  auto entries = std::exchange(entries_, {});
  std::unordered_map<const void*, int64_t> missing;
  for (const auto& entry : entries) ++missing[entry.weight.unsafeGetTensorImpl()];
  for (auto& [weight, make] : entries) {
    auto made = make();
    make = nullptr;  // its operands are needed no more
    auto& grad = weight.mutable_grad();
    if (grad.defined()) {
      grad.add_(made);
    } else {
      grad = std::move(made);
    }
    if (--missing[weight.unsafeGetTensorImpl()] == 0 && done) done(weight);
  }
}

DeferWeightGradients::DeferWeightGradients(WeightGradients* queue)
    : before_(std::exchange(in_force, queue)) {}

DeferWeightGradients::~DeferWeightGradients() { in_force = before_; }

WeightGradients* DeferWeightGradients::queue() { return in_force; }

// The engine runs backward passes of CUDA devices on threads of its own: the note travels with the graph.
void note_queue(torch::autograd::AutogradContext* ctx) {
  if (in_force) ctx->saved_data[kNote] = c10::IValue::make_capsule(c10::make_intrusive<Note>(in_force));
}

WeightGradients* noted_queue(const torch::autograd::AutogradContext* ctx) {
  const auto note = ctx->saved_data.find(kNote);
  return note == ctx->saved_data.end() ? nullptr : static_cast<Note&>(*note->second.toCapsule()).queue;
}

}  // namespace hero::ops
