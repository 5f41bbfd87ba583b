#pragma once
// What a request asks of the engine, and what the engine's thread hands back to the request's thread.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "inference/sampler.h"
#include "inference/server/api_error.h"

namespace hero {

using Clock = std::chrono::steady_clock;

/// Texts to make. Those of prompt p are p*n to p*n + n - 1; the i-th of each draws with sampling.seed + i.
struct Task {
  std::vector<std::vector<int64_t>> prompts;  ///< none empty, all in the vocabulary
  int64_t n = 1;
  Sampling sampling;              ///< max_tokens may be 0 where prompts are scored
  std::vector<std::string> stop;  ///< strings that end a text, and are no part of it
  bool score_prompts = false;     ///< probabilities of the prompts' tokens too, sampling.logprobs of each
  bool stream = false;            ///< wake the reader for every token
  Clock::time_point deadline = Clock::time_point::max();
};

/// A token with its probability; none for the first of a prompt.
struct LoggedToken {
  int64_t id;
  std::optional<TokenLogprobs> logprobs;
};

/// What is new about a text.
struct Event {
  size_t text = 0;
  std::string content;              ///< whole characters
  std::vector<LoggedToken> tokens;  ///< those of a scored prompt, or one made; where the task asks for them
  int64_t made = 0;                 ///< tokens made, the end token among them
  const char* finish = nullptr;     ///< "stop" or "length": nothing more will come
};

class Answer {
 public:
  explicit Answer(size_t texts, bool stream) : unfinished_(texts), stream_(stream) {}

  /// The events since the last call, in order; none where `patience` ends first. ApiError as fail has it.
  std::vector<Event> wait(std::chrono::milliseconds patience);
  /// Whether every text has ended, and wait has returned all of it.
  bool done() const;
  /// The reader is gone: the engine forgets the task.
  void cancel() { cancelled_ = true; }
  bool cancelled() const { return cancelled_; }

  void push(Event event);
  void fail(const ApiError& error);

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Event> events_;
  std::exception_ptr error_;
  size_t unfinished_;
  const bool stream_;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace hero
