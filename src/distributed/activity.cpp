#include "distributed/activity.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>

namespace hero {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Wait {
  std::string operation;
  double since;
};

struct State {
  std::mutex mutex;
  int64_t step = 0;
  int64_t next_id = 0;
  std::map<int64_t, Wait> waits;  // of all threads, by id
  double since = now();           // end of the last wait
  std::string last_operation;
  std::function<std::string(const std::string&)> diagnosis;
};

thread_local double total_wait = 0;

State& state() {
  static State state;
  return state;
}

}  // namespace

Activity current_activity() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.waits.empty()) return {.step = s.step, .last_operation = s.last_operation, .since = s.since};
  const Wait& oldest = s.waits.begin()->second;
  return {.step = s.step,
          .operation = oldest.operation,
          .last_operation = s.last_operation,
          .since = oldest.since};
}

void set_current_step(int64_t step) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.step = step;
}

ScopedWait::ScopedWait(const std::string& operation) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  id_ = s.next_id++;
  s.waits[id_] = {operation, now()};
}

ScopedWait::~ScopedWait() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto wait = s.waits.find(id_);
  s.since = now();
  total_wait += s.since - wait->second.since;
  s.last_operation = std::move(wait->second.operation);
  s.waits.erase(wait);
}

double seconds_waited() { return total_wait; }

void set_diagnosis(std::function<std::string(const std::string&)> diagnosis) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.diagnosis = std::move(diagnosis);
}

std::string diagnosis(const std::string& failure) {
  State& s = state();
  std::function<std::string(const std::string&)> diagnose;
  {
    const std::lock_guard lock(s.mutex);
    diagnose = s.diagnosis;
  }
  return diagnose ? diagnose(failure) : failure;
}

std::string one_line(const std::exception& e) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&e);
  std::string text = c10_error ? c10_error->what_without_backtrace() : e.what();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace hero
