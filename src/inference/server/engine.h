// One thread that owns the model: texts of all requests go on together, one token a step; texts join and
// leave between steps. Prompts whose own probabilities are asked for pass through the model whole, in batches
// of similar length, one batch between two steps. Requests take turns, whatever number of texts each has.
//
// A text depends on its prompt, its sampling and its seed, and on its neighbours only by rounding: products
// of more rows may add in another order.
#pragma once
#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "inference/sampler.h"
#include "inference/server/answer.h"
#include "inference/server/metrics.h"
#include "inference/server/text_stream.h"
#include "tokenizer/tokenizer.h"

namespace hero {

class Engine {
 public:
  struct Limits {
    size_t max_batch = 32;   ///< texts in the making
    size_t max_queue = 128;  ///< requests that wait for their first step
  };
  /// All three must outlive the engine.
  Engine(const Transformer& model, const Tokenizer& tokenizer, ServeMetrics& metrics, Limits limits);
  /// Ends at once, as `stop`.
  ~Engine();

  /// Takes a task. ApiError 503 where the queue is full, or the engine stopped.
  std::shared_ptr<Answer> submit(Task task);
  /// Fails what is unfinished (503), and everything that comes after.
  void stop();

 private:
  struct Job {
    Task task;
    std::shared_ptr<Answer> answer;
    Clock::time_point arrived;
    uint64_t served = 0;  // the turn it had last
    bool started = false, timed = false;
    std::vector<size_t> unscored;  // prompts, the next one last
    std::vector<size_t> ready;     // texts that may begin, the next one last
    size_t unfinished = 0;         // texts
  };
  struct Text {
    Job* job;
    size_t number;  // among the job's
    CharacterJoiner joiner;
    StopFinder stops;
    int64_t made = 0, room = 0;
    Clock::time_point last;
  };

  void run();
  void work();
  bool take_new_jobs();
  void drop_jobs();
  void score_batch();
  void finish_scored(Job& job, size_t prompt, const std::vector<TokenLogprobs>& tokens,
                     const at::Tensor& next_V);
  void begin_texts();
  void step();
  Text new_text(Job& job, size_t number) const;
  Sampling sampling_of(const Text& text) const;
  bool take_token(Text& text, std::optional<int64_t> drawn, bool ended,
                  std::optional<TokenLogprobs> logprobs);
  void give_turn(Job& job);
  void fail_job(Job& job, const ApiError& error);
  void show_load();

  const Transformer& model_;
  const Tokenizer& tokenizer_;
  ServeMetrics& metrics_;
  const Limits limits_;

  std::mutex mutex_;  // of the next four
  std::condition_variable changed_;
  std::list<Job> incoming_;
  size_t waiting_ = 0;  // jobs that have not started
  bool stopped_ = false;

  // The thread's own.
  std::list<Job> jobs_;  // in the order of arrival
  std::unique_ptr<Generator> generator_;
  std::map<size_t, Text> running_;  // by the generator's numbers
  uint64_t turn_ = 0;
  std::thread thread_;
};

}  // namespace hero
