#pragma once
// Weight gradients put off, for schedules that send the gradient of a micro-batch's input on before they make
// those of its weights (zero bubble: arXiv 2401.10241).
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <optional>
#include <tuple>
#include <vector>

namespace hero::ops {

/// Gradients that backward passes left to be made later, in their order, each with what it is made from.
/// Outlives the backward passes of what ran forward under its DeferWeightGradients. One thread at a time.
class WeightGradients {
 public:
  /// `deferred(weight)` is called when a backward pass leaves the first gradient of a weight to this queue,
  /// before the pass reaches the weight itself.
  explicit WeightGradients(std::function<void(const at::Tensor& weight)> deferred = {})
      : deferred_(std::move(deferred)) {}
  WeightGradients(const WeightGradients&) = delete;
  WeightGradients& operator=(const WeightGradients&) = delete;

  /// `make` returns the gradient of the leaf `weight`, contiguous, in the type that its grad has.
  void add(const at::Tensor& weight, std::function<at::Tensor()> make);

  /// Makes them all and adds each to its weight's grad, in the order in which they were put off: the bits are
  /// those of backward passes that put nothing off. Calls `done(weight)` once for each weight, when its last
  /// one is in. Afterwards the queue is empty.
  void run(const std::function<void(const at::Tensor& weight)>& done = {});

  bool empty() const { return entries_.empty(); }

 private:
  struct Entry {
    at::Tensor weight;
    std::function<at::Tensor()> make;
  };
  std::function<void(const at::Tensor& weight)> deferred_;
  std::vector<Entry> entries_;
};

/// While it lives, ops::linear, ops::experts and ops::route note `queue` when they run forward on this
/// thread. Their backward passes, on whatever thread and at whatever time, then make the gradients of their
/// inputs alone and leave those of weights to the queue. Weights that are no leaves get theirs at once, as do
/// all weights with null. Other operators, and route_through, put nothing off.
class DeferWeightGradients {
 public:
  explicit DeferWeightGradients(WeightGradients* queue);
  ~DeferWeightGradients();
  DeferWeightGradients(const DeferWeightGradients&) = delete;
  DeferWeightGradients& operator=(const DeferWeightGradients&) = delete;

  /// The queue in force on this thread, or null.
  static WeightGradients* queue();

 private:
  WeightGradients* before_;
};

/// For an operator's forward pass: notes the queue in force, if any.
void note_queue(torch::autograd::AutogradContext* ctx);
/// The queue that the forward pass noted, or null.
WeightGradients* noted_queue(const torch::autograd::AutogradContext* ctx);

inline at::Tensor detached(const at::Tensor& x) { return x.detach(); }
inline std::optional<at::Tensor> detached(const std::optional<at::Tensor>& x) {
  return x ? std::optional(x->detach()) : x;
}

/// For its backward pass: the gradient of its input number `input`, `weight`, which `op`, an Operator that
/// lives on, makes of `operands`. Undefined where none is wanted, and where it was left to the noted queue.
template <typename Op, typename... Operands>
at::Tensor weight_gradient(torch::autograd::AutogradContext* ctx, size_t input, const at::Tensor& weight,
                           const Op& op, const Operands&... operands) {
  if (!ctx->needs_input_grad(input)) return {};
  auto* queue = noted_queue(ctx);
  if (!queue || !weight.is_leaf()) return op.call(operands...);
  // Detached, operands keep nothing of the graph alive.
  queue->add(weight, [&op, kept = std::tuple(detached(operands)...)] {
    return std::apply([&](const auto&... each) { return op.call(each...); }, kept);
  });
  return {};
}

}  // namespace hero::ops
