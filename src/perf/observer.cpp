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
#include <utility>
#include <vector>

#include "ops/cuda_library.h"

namespace hero {
namespace {

using Clock = std::chrono::steady_clock;

// The dispatcher's callbacks are plain functions. One clock lives at a time.
struct Seen {
  std::mutex mutex;  // backward passes have threads of their own on a GPU
  c10::Device device = c10::kCPU;
  int64_t calls = 0;
  double seconds = 0;
  std::vector<std::pair<c10::Event, c10::Event>> events;  // on a GPU, before and after
};

Seen& seen() {
  static Seen seen;
  return seen;
}

c10::Event event_now(c10::Device device) {
  c10::Event event(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

struct Began : at::ObserverContext {
  Clock::time_point time = Clock::now();
  std::optional<c10::Event> event;
};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  if (name != "hero::route_forward" && !name.starts_with("hero::route_backward_")) return nullptr;
  auto began = std::make_unique<Began>();
  if (const auto device = seen().device; !device.is_cpu()) began->event = event_now(device);
  return began;
}

void end(const at::RecordFunction&, at::ObserverContext* context) {
  if (!context) return;
  auto& began = *static_cast<Began*>(context);
  const std::chrono::duration<double> spent = Clock::now() - began.time;
  auto& all = seen();
  const std::scoped_lock lock(all.mutex);
  ++all.calls;
  if (began.event) {
    all.events.emplace_back(std::move(*began.event), event_now(all.device));
  } else {
    all.seconds += spent.count();
  }
}

}  // namespace

RouterClock::RouterClock(c10::Device device) {
  auto& all = seen();
  all.device = device;
  all.calls = 0;
  all.seconds = 0;
  all.events.clear();
  handle_ = at::addGlobalCallback(at::RecordFunctionCallback(begin, end).scopes({at::RecordScope::FUNCTION}));
}

RouterClock::~RouterClock() {
  at::removeCallback(handle_);
  seen().events.clear();
}

double RouterClock::seconds() const {
  auto& all = seen();
  const std::scoped_lock lock(all.mutex);
  wait_for(all.device);
  double sum = all.seconds;
  for (const auto& [before, after] : all.events) sum += before.elapsedTime(after) * 1e-3;
  return sum;
}

int64_t RouterClock::calls() const {
  const std::scoped_lock lock(seen().mutex);
  return seen().calls;
}

class TensorLedger::Counter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    live += bytes;
    peak = std::max(peak, live);
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t live = 0, peak = 0;
};

TensorLedger::TensorLedger()
    : log_level_(std::exchange(FLAGS_caffe2_log_level, c10::GLOG_ERROR)),
      counter_(std::make_shared<Counter>()),
      guard_(std::make_unique<c10::DebugInfoGuard>(c10::DebugInfoKind::PROFILER_STATE, counter_)) {}

TensorLedger::~TensorLedger() { FLAGS_caffe2_log_level = log_level_; }

int64_t TensorLedger::live() const { return counter_->live; }

int64_t TensorLedger::peak() const { return counter_->peak; }

}  // namespace hero
