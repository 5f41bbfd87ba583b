#pragma once
// A request to the engine, and its output, passed from the engine thread to the request's thread.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "inference/sampler.h"
#include "inference/server/api_error.h"
#include "inference/server/logged_tokens.h"

namespace hero {

using Clock = std::chrono::steady_clock;

/// Prompts to complete. Sequences p*n to p*n + n - 1 belong to prompt p; the i-th of each prompt uses the
/// seed sampling.seed + i.
struct EngineRequest {
  std::vector<std::vector<int64_t>> prompts;  ///< non-empty, all ids in the vocabulary
  int64_t n = 1;
  SamplingParams sampling;        ///< max_tokens may be 0 if score_prompts is set
  std::vector<std::string> stop;  ///< stop strings, excluded from the output
  bool score_prompts = false;     ///< also return the log-probabilities of the prompt tokens
  bool stream = false;            ///< notify the reader of every token
  Clock::time_point deadline = Clock::time_point::max();
};

/// New output of a sequence.
struct SequenceOutput {
  size_t sequence = 0;
  std::string text;                            ///< complete UTF-8 characters
  std::shared_ptr<const LoggedTokens> prompt;  ///< of a scored prompt, shared by its completions
  LoggedTokens tokens;                         ///< generated tokens; only with logprobs
  int64_t num_generated = 0;                   ///< generated tokens, including the eos
  const char* finish_reason = nullptr;         ///< "stop" or "length" in the last output

  /// Adds the next output of the same sequence.
  void append(SequenceOutput next);
};

class RequestOutput {
 public:
  explicit RequestOutput(size_t sequences, bool stream) : unfinished_(sequences), stream_(stream) {}

  /// The output of every sequence since the last call; empty after `timeout`. Throws the error given to
  /// `fail`.
  std::vector<SequenceOutput> wait(std::chrono::milliseconds timeout);
  /// Whether every sequence has finished and `wait` has returned all outputs.
  bool done() const;
  /// The client has disconnected: the engine aborts the request.
  void cancel() { cancelled_ = true; }
  bool cancelled() const { return cancelled_; }

  void push(SequenceOutput output);
  void fail(const ApiError& error);

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<size_t, SequenceOutput> outputs_;  // by sequence
  std::exception_ptr error_;
  size_t unfinished_;
  const bool stream_;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace hero
