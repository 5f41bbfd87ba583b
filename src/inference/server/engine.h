// Continuous batching on one thread that owns the model: all active sequences decode together, one token per
// step, and join and leave between steps. Prompts to be scored run in separate forward passes, batched by
// length, one batch between two steps. Requests are scheduled round-robin, however many sequences each has.
//
// The output of a sequence depends on its prompt, sampling parameters and seed. The rest of the batch affects
// it only through rounding: a GEMM with more rows may sum in another order.
#pragma once
#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "inference/sampler.h"
#include "inference/server/metrics.h"
#include "inference/server/request_output.h"
#include "inference/server/text_stream.h"
#include "tokenizer/tokenizer.h"

namespace hero {

class Engine {
 public:
  struct Limits {
    size_t max_batch = 32;   ///< active sequences
    size_t max_queue = 128;  ///< requests waiting for their first step
  };
  /// All three must outlive the engine.
  Engine(const Transformer& model, const Tokenizer& tokenizer, ServeMetrics& metrics, Limits limits);
  /// Calls `stop`.
  ~Engine();

  /// Queues a request. ApiError 503 if the queue is full or the engine has stopped.
  std::shared_ptr<RequestOutput> submit(EngineRequest request);
  /// Fails all unfinished and later requests with status 503.
  void stop();

 private:
  struct RequestState {
    EngineRequest request;
    std::shared_ptr<RequestOutput> output;
    Clock::time_point arrival;
    uint64_t last_turn = 0;
    bool started = false, has_first_token = false;
    std::vector<size_t> unscored;  // prompts in reverse order
    std::vector<size_t> waiting;   // sequences in reverse order
    size_t unfinished = 0;         // number of sequences
  };
  struct Sequence {
    RequestState* state;
    size_t index;  // within the request
    Utf8StreamDecoder decoder;
    StopStringMatcher stops;
    int64_t num_generated = 0, max_new_tokens = 0;
    Clock::time_point last_token;
  };

  void run();
  void step();
  bool receive_requests();
  void remove_finished_requests();
  void score_batch();
  void process_scored_prompt(RequestState& state, size_t prompt, const std::vector<TokenLogprobs>& tokens,
                             const at::Tensor& next_V);
  void admit_sequences();
  void generate_tokens();
  Sequence make_sequence(RequestState& state, size_t index) const;
  SamplingParams sampling_params(const Sequence& sequence) const;
  bool process_token(Sequence& sequence, std::optional<int64_t> sampled, bool finished,
                     const std::optional<TokenLogprobs>& logprobs);
  void mark_scheduled(RequestState& state);
  void fail_request(RequestState& state, const ApiError& error);
  void update_load_metrics();

  const Transformer& model_;
  const Tokenizer& tokenizer_;
  ServeMetrics& metrics_;
  const Limits limits_;

  std::mutex mutex_;  // guards the next four
  std::condition_variable changed_;
  std::list<RequestState> incoming_;
  size_t waiting_ = 0;  // requests that have not started
  bool stopped_ = false;

  // Accessed only by the engine thread.
  std::list<RequestState> requests_;  // by arrival
  std::unique_ptr<Generator> generator_;
  std::map<size_t, Sequence> running_;  // by the generator's sequence id
  uint64_t turn_ = 0;
  std::thread thread_;
};

}  // namespace hero
