#pragma once
// Weight gradients that are not returned to autograd: deferred ones, for pipeline schedules that send input
// gradients before they compute weight gradients (zero bubble: arXiv 2401.10241), and those that kernels add
// to the grad of their weight.
#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>
#include <vector>

namespace hero::ops {

/// FIFO queue of deferred weight gradients and their operands. Must outlive the backward passes of all
/// forward passes that ran under its DeferWeightGradients. Not thread-safe.
class WeightGradientQueue {
 public:
  /// `deferred(weight)` is called when a backward pass defers the first gradient of a weight, before the pass
  /// reaches the weight itself.
  explicit WeightGradientQueue(std::function<void(const at::Tensor& weight)> deferred = {})
      : deferred_(std::move(deferred)) {}
  WeightGradientQueue(const WeightGradientQueue&) = delete;
  WeightGradientQueue& operator=(const WeightGradientQueue&) = delete;

  /// `compute` returns the gradient of the leaf `weight`, contiguous and of the type of its grad.
  void add(const at::Tensor& weight, std::function<at::Tensor()> compute);

  /// Computes all gradients and accumulates them into the weights' grads in the order in which they were
  /// deferred, so results are bitwise identical to backward passes without deferral. Calls `done(weight)`
  /// once per weight, after its last gradient. Empties the queue.
  void run(const std::function<void(const at::Tensor& weight)>& done = {});

  bool empty() const { return entries_.empty(); }

 private:
  struct Entry {
    at::Tensor weight;
    std::function<at::Tensor()> compute;
  };
  std::function<void(const at::Tensor& weight)> deferred_;
  std::vector<Entry> entries_;
};

/// RAII guard: forward passes of ops::linear, ops::experts and ops::route on this thread save `queue`. Their
/// backward passes, on any thread and at any time, then compute only input gradients and add the weight
/// gradients to the queue. Gradients of non-leaf weights, and of all weights if `queue` is null, are computed
/// immediately. Other operators, and route_through, never defer.
class DeferWeightGradients {
 public:
  explicit DeferWeightGradients(WeightGradientQueue* queue);
  ~DeferWeightGradients();
  DeferWeightGradients(const DeferWeightGradients&) = delete;
  DeferWeightGradients& operator=(const DeferWeightGradients&) = delete;

  /// The active queue of this thread, or null.
  static WeightGradientQueue* queue();

 private:
  WeightGradientQueue* previous_;
};

/// RAII guard: forward passes of ops::experts and ops::linear_cross_entropy on this thread note in the graph
/// that their backward passes, on any thread, add the gradients of leaves to their grad once it is defined,
/// one pass over memory instead of two. Gradients of experts are bitwise equal, others up to one rounding.
/// Only for backward() without hooks on those leaves: torch.autograd.grad and hooks would miss the gradients.
/// Deferred gradients have precedence.
class AccumulateWeightGradients {
 public:
  explicit AccumulateWeightGradients(bool active = true);
  ~AccumulateWeightGradients();
  AccumulateWeightGradients(const AccumulateWeightGradients&) = delete;
  AccumulateWeightGradients& operator=(const AccumulateWeightGradients&) = delete;

 private:
  bool previous_;
};

}  // namespace hero::ops
