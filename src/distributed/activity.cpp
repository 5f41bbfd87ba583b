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
  int64_t begun = 0;              // waits so far
  std::map<int64_t, Wait> waits;  // of all threads, by number
  double since = now();           // the last wait ended
  std::string last;               // operation waited for
  std::function<std::string(const std::string&)> diagnosis;
};

thread_local double waited = 0;

State& state() {
  static State state;
  return state;
}

}  // namespace

Activity current_activity() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.waits.empty()) return {.step = s.step, .last = s.last, .since = s.since};
  const Wait& oldest = s.waits.begin()->second;
  return {.step = s.step, .operation = oldest.operation, .last = s.last, .since = oldest.since};
}

void set_current_step(int64_t step) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.step = step;
}

Waiting::Waiting(const std::string& operation) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  number_ = s.begun++;
  s.waits[number_] = {operation, now()};
}

Waiting::~Waiting() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto wait = s.waits.find(number_);
  s.since = now();
  waited += s.since - wait->second.since;
  s.last = std::move(wait->second.operation);
  s.waits.erase(wait);
}

double seconds_waited() { return waited; }

void set_diagnosis(std::function<std::string(const std::string&)> diagnosis) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.diagnosis = std::move(diagnosis);
}

std::string diagnosis(const std::string& failure) {
  State& s = state();
  std::function<std::string(const std::string&)> ask;
  {
    const std::lock_guard lock(s.mutex);
    ask = s.diagnosis;
  }
  return ask ? ask(failure) : failure;
}

std::string one_line(const std::exception& e) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&e);
  std::string text = c10_error ? c10_error->what_without_backtrace() : e.what();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace hero
