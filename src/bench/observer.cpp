#include "bench/observer.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string_view>

namespace hero {
namespace {

using Clock = std::chrono::steady_clock;

// The dispatcher's callbacks are plain functions. One clock lives at a time.
std::atomic<int64_t> nanoseconds{0}, calls_seen{0};

struct Began : at::ObserverContext {
  Clock::time_point time = Clock::now();
};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  if (name != "hero::route_forward" && !name.starts_with("hero::route_backward_")) return nullptr;
  return std::make_unique<Began>();
}

void end(const at::RecordFunction&, at::ObserverContext* context) {
  if (!context) return;
  const auto spent = Clock::now() - static_cast<Began*>(context)->time;
  nanoseconds += std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count();
  ++calls_seen;
}

}  // namespace

RouterClock::RouterClock()
    : handle_(
          at::addGlobalCallback(at::RecordFunctionCallback(begin, end).scopes({at::RecordScope::FUNCTION}))) {
  nanoseconds = calls_seen = 0;
}

RouterClock::~RouterClock() { at::removeCallback(handle_); }

double RouterClock::seconds() const { return static_cast<double>(nanoseconds) * 1e-9; }

int64_t RouterClock::calls() const { return calls_seen; }

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
    : counter_(std::make_shared<Counter>()),
      guard_(std::make_unique<c10::DebugInfoGuard>(c10::DebugInfoKind::PROFILER_STATE, counter_)) {}

TensorLedger::~TensorLedger() = default;

int64_t TensorLedger::live() const { return counter_->live; }

int64_t TensorLedger::peak() const { return counter_->peak; }

}  // namespace hero
