#include "perf/observer.h"

#include <c10/core/Allocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Logging.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/cuda_library.h"

namespace hero {
namespace {

using Clock = std::chrono::steady_clock;

// Dispatcher callbacks are plain functions without state. Only one timer exists at a time.
struct TimerState {
  std::mutex mutex;  // on a GPU, backward passes run in other threads
  c10::Device device = c10::kCPU;
  int64_t calls = 0;
  double seconds = 0;
  std::vector<std::pair<c10::Event, c10::Event>> events;  // on a GPU: start and end
};

TimerState& timer_state() {
  static TimerState timer_state;
  return timer_state;
}

c10::Event event_now(c10::Device device) {
  c10::Event event(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

struct CallContext : at::ObserverContext {
  Clock::time_point time = Clock::now();
  std::optional<c10::Event> event;
};

std::unique_ptr<at::ObserverContext> on_call_start(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  if (name != "hero::route_forward" && !name.starts_with("hero::route_backward_")) return nullptr;
  auto call = std::make_unique<CallContext>();
  if (const auto device = timer_state().device; !device.is_cpu()) call->event = event_now(device);
  return call;
}

void on_call_end(const at::RecordFunction&, at::ObserverContext* context) {
  if (!context) return;
  auto& call = *static_cast<CallContext*>(context);
  const std::chrono::duration<double> spent = Clock::now() - call.time;
  auto& state = timer_state();
  const std::scoped_lock lock(state.mutex);
  ++state.calls;
  if (call.event) {
    state.events.emplace_back(std::move(*call.event), event_now(state.device));
  } else {
    state.seconds += spent.count();
  }
}

}  // namespace

RouterTimer::RouterTimer(c10::Device device) {
  auto& state = timer_state();
  state.device = device;
  state.calls = 0;
  state.seconds = 0;
  state.events.clear();
  handle_ = at::addGlobalCallback(
      at::RecordFunctionCallback(on_call_start, on_call_end).scopes({at::RecordScope::FUNCTION}));
}

RouterTimer::~RouterTimer() {
  at::removeCallback(handle_);
  timer_state().events.clear();
}

double RouterTimer::seconds() const {
  auto& state = timer_state();
  const std::scoped_lock lock(state.mutex);
  synchronize(state.device);
  double sum = state.seconds;
  for (const auto& [before, after] : state.events) sum += before.elapsedTime(after) * 1e-3;
  return sum;
}

int64_t RouterTimer::calls() const {
  const std::scoped_lock lock(timer_state().mutex);
  return timer_state().calls;
}

class TensorMemoryTracker::Counter : public c10::MemoryReportingInfoBase {
 public:
  // PyTorch does not forget a block that an earlier tracker saw if it is freed after that one, and reports
  // its size for later blocks at its address.
  void reportMemoryUsage(void* block, int64_t bytes, size_t, size_t, c10::Device) override {
    if (bytes > 0) {
      sizes_[block] = bytes;
      live += bytes;
    } else if (const auto found = sizes_.find(block); found != sizes_.end()) {
      live -= found->second;
      sizes_.erase(found);
    }
    peak = std::max(peak, live);
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t live = 0, peak = 0;

 private:
  std::unordered_map<void*, int64_t> sizes_;
};

TensorMemoryTracker::TensorMemoryTracker()
    : log_level_(std::exchange(FLAGS_caffe2_log_level, c10::GLOG_ERROR)),
      counter_(std::make_shared<Counter>()),
      guard_(std::make_unique<c10::DebugInfoGuard>(c10::DebugInfoKind::PROFILER_STATE, counter_)) {}

TensorMemoryTracker::~TensorMemoryTracker() { FLAGS_caffe2_log_level = log_level_; }

int64_t TensorMemoryTracker::live() const { return counter_->live; }

int64_t TensorMemoryTracker::peak() const { return counter_->peak; }

}  // namespace hero
