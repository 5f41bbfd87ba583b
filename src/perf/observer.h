#pragma once
// What is seen of a training step from outside of it: time in the routers' operators, bytes of tensors. Only
// while such an observer lives; steps without one pay nothing.
#include <ATen/record_function.h>
#include <c10/core/Device.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>

namespace hero {

/// Time spent in hero::route_forward and hero::route_backward_*, by callbacks of the dispatcher: this
/// machine's clock, or on a GPU events in the stream before and after each. What a recorded graph replays is
/// not seen.
class RouterClock {
 public:
  explicit RouterClock(c10::Device device);
  ~RouterClock();
  RouterClock(const RouterClock&) = delete;
  RouterClock& operator=(const RouterClock&) = delete;

  double seconds() const;  ///< since the clock began; on a GPU waits for what it was given
  int64_t calls() const;

 private:
  at::CallbackHandle handle_;
};

/// Bytes of CPU tensors that this thread makes and frees while it lives. Temporaries that operators take from
/// the heap themselves are not among them, nor are tensors that were there before; of their end the library
/// would warn, so its warnings wait meanwhile.
class TensorLedger {
 public:
  TensorLedger();
  ~TensorLedger();
  TensorLedger(const TensorLedger&) = delete;
  TensorLedger& operator=(const TensorLedger&) = delete;

  int64_t live() const;  ///< bytes made and not freed since it began
  int64_t peak() const;  ///< the most that `live` was

 private:
  class Counter;
  int log_level_;
  std::shared_ptr<Counter> counter_;
  std::unique_ptr<c10::DebugInfoGuard> guard_;
};

}  // namespace hero
