#pragma once
// Observers of a training step: time in router operators, bytes of tensors. Steps without an observer have no
// overhead.
#include <ATen/record_function.h>
#include <c10/core/Device.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>

namespace hero {

/// Time spent in hero::route_forward and hero::route_backward_*, measured in dispatcher callbacks: wall
/// clock, or CUDA events on a GPU. Does not include replayed CUDA graphs.
class RouterTimer {
 public:
  explicit RouterTimer(c10::Device device);
  ~RouterTimer();
  RouterTimer(const RouterTimer&) = delete;
  RouterTimer& operator=(const RouterTimer&) = delete;

  double seconds() const;  ///< since construction; synchronizes a GPU
  int64_t calls() const;

 private:
  at::CallbackHandle handle_;
};

/// Bytes of CPU tensors that this thread allocates and frees during the tracker's lifetime, without
/// operators' own heap allocations and earlier tensors. PyTorch warns when earlier tensors are freed, so
/// warnings are off.
class TensorMemoryTracker {
 public:
  TensorMemoryTracker();
  ~TensorMemoryTracker();
  TensorMemoryTracker(const TensorMemoryTracker&) = delete;
  TensorMemoryTracker& operator=(const TensorMemoryTracker&) = delete;

  int64_t live() const;  ///< bytes allocated and not freed since construction
  int64_t peak() const;  ///< maximum of `live`

 private:
  class Counter;
  int log_level_;
  std::shared_ptr<Counter> counter_;
  std::unique_ptr<c10::DebugInfoGuard> guard_;
};

}  // namespace hero
