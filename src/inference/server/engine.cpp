#include "inference/server/engine.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "inference/server/scoring.h"

namespace hero {
namespace {

// Rows of one pass over prompts. Between two passes every running text gets its token.
constexpr size_t kPassTokens = 4096;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

Engine::Engine(const Transformer& model, const Tokenizer& tokenizer, ServeMetrics& metrics, Limits limits)
    : model_(model),
      tokenizer_(tokenizer),
      metrics_(metrics),
      limits_(limits),
      generator_(std::make_unique<Generator>(model)),
      thread_([this] { run(); }) {}

Engine::~Engine() {
  stop();
  thread_.join();
}

std::shared_ptr<Answer> Engine::submit(Task task) {
  const size_t texts = task.prompts.size() * static_cast<size_t>(task.n);
  Job job;
  job.answer = std::make_shared<Answer>(texts, task.stream);
  job.arrived = Clock::now();
  job.unfinished = texts;
  auto& order = task.score_prompts ? job.unscored : job.ready;
  for (size_t i = task.score_prompts ? task.prompts.size() : texts; i-- > 0;) order.push_back(i);
  job.task = std::move(task);
  auto answer = job.answer;
  const std::lock_guard lock(mutex_);
  if (stopped_) throw ApiError(503, "the server is stopping", "", "stopping");
  if (waiting_ >= limits_.max_queue) {
    throw ApiError(503,
                   "found " + std::to_string(waiting_) + " requests waiting, expected fewer than " +
                       std::to_string(limits_.max_queue) + ": try again later",
                   "", "queue_full");
  }
  incoming_.push_back(std::move(job));
  ++waiting_;
  changed_.notify_one();
  return answer;
}

void Engine::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_one();
}

void Engine::run() {
  while (take_new_jobs()) {
    try {
      work();
    } catch (const std::exception& e) {
      // Caches may be half written: whoever was in them begins anew elsewhere.
      const std::string what = e.what();  // and the stack, line by line
      std::fprintf(stderr, "hero: serve: %s\n", what.substr(0, what.find('\n')).c_str());
      for (auto& job : jobs_) {
        if (job.started) fail_job(job, ApiError(500, "the model failed", "", "engine_error"));
      }
      drop_jobs();
      generator_ = std::make_unique<Generator>(model_);
    }
  }
  for (auto& job : jobs_) fail_job(job, ApiError(503, "the server is stopping", "", "stopping"));
  drop_jobs();
}

void Engine::work() {
  for (auto& job : jobs_) {
    if (job.answer->cancelled()) {
      metrics_.count_cancelled();
      job.unfinished = 0;
    } else if (Clock::now() >= job.task.deadline) {
      fail_job(job, ApiError(504, "the request took longer than the server's limit", "", "timeout"));
    }
  }
  drop_jobs();
  score_batch();
  begin_texts();
  show_load();
  step();
  drop_jobs();
  show_load();
}

// Waits until there is something to do; false when the engine is to stop.
bool Engine::take_new_jobs() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopped_ || !incoming_.empty() || !jobs_.empty(); });
  for (auto& job : incoming_) job.served = turn_;
  jobs_.splice(jobs_.end(), incoming_);
  return !stopped_;
}

void Engine::fail_job(Job& job, const ApiError& error) {
  job.answer->fail(error);
  job.unfinished = 0;
}

// Forgets the jobs without unfinished texts.
void Engine::drop_jobs() {
  for (auto it = running_.begin(); it != running_.end();) {
    if (it->second.job->unfinished == 0) {
      generator_->remove(it->first);
      it = running_.erase(it);
    } else {
      ++it;
    }
  }
  const std::lock_guard lock(mutex_);
  std::erase_if(jobs_, [this](const Job& job) {
    if (job.unfinished > 0) return false;
    waiting_ -= !job.started;
    return true;
  });
}

void Engine::give_turn(Job& job) {
  job.served = ++turn_;
  if (job.started) return;
  job.started = true;
  const std::lock_guard lock(mutex_);
  --waiting_;
}

void Engine::show_load() {
  const std::lock_guard lock(mutex_);
  metrics_.set_load(waiting_, running_.size());
}

// The prompt of the job whose turn it is, and others that are no longer, but at least half as long.
void Engine::score_batch() {
  std::vector<std::pair<Job*, size_t>> candidates;
  Job* first = nullptr;
  for (auto& job : jobs_) {
    if (job.unscored.empty()) continue;
    if (!first || job.served < first->served) first = &job;
    for (const size_t prompt : job.unscored) candidates.emplace_back(&job, prompt);
  }
  if (!first) return;
  const auto size = [](const auto& c) { return c.first->task.prompts[c.second].size(); };
  const std::pair<Job*, size_t> oldest{first, first->unscored.back()};
  const size_t longest = size(oldest);
  std::erase_if(candidates,
                [&](const auto& c) { return c == oldest || size(c) > longest || 2 * size(c) < longest; });
  std::ranges::sort(candidates, std::ranges::greater(), size);
  candidates.insert(candidates.begin(), oldest);
  candidates.resize(std::min(candidates.size(), std::max<size_t>(1, kPassTokens / longest)));

  std::vector<std::span<const int64_t>> prompts;
  std::vector<int64_t> top;
  for (const auto& [job, prompt] : candidates) {
    give_turn(*job);
    prompts.emplace_back(job->task.prompts[prompt]);
    top.push_back(job->task.sampling.logprobs);
  }
  const auto scored = score_prompts(model_, prompts, top);
  metrics_.observe_scored(static_cast<int64_t>(scored.size()));
  for (size_t i = 0; i < scored.size(); ++i) {
    const auto [job, prompt] = candidates[i];
    std::erase(job->unscored, prompt);
    finish_scored(*job, prompt, scored[i].tokens, scored[i].next_V);
  }
}

// Hands out a prompt's probabilities. Where a text is to have one token more, or none, that is all of it.
void Engine::finish_scored(Job& job, size_t prompt, const std::vector<TokenLogprobs>& tokens,
                           const at::Tensor& next_V) {
  const auto& ids = job.task.prompts[prompt];
  std::vector<LoggedToken> logged{{ids[0], std::nullopt}};
  for (size_t i = 1; i < ids.size(); ++i) logged.push_back({ids[i], tokens[i - 1]});
  const auto n = static_cast<size_t>(job.task.n);
  for (size_t number = (prompt + 1) * n; number-- > prompt * n;) {
    Text text = new_text(job, number);
    const bool last = text.room == 0;
    job.answer->push({.text = number, .tokens = logged, .finish = last ? "length" : nullptr});
    if (last) {
      --job.unfinished;
    } else if (text.room == 1) {
      const auto sampling = sampling_of(text);
      const int64_t id = choose_token(next_V, sampling, 0);
      const bool ended = std::ranges::find(sampling.eos, id) != sampling.eos.end();
      take_token(text, id, ended, token_logprobs(next_V, id, sampling.logprobs));
    } else {
      job.ready.push_back(number);
    }
  }
  metrics_.count_tokens(std::ssize(ids), 0);
}

Engine::Text Engine::new_text(Job& job, size_t number) const {
  const auto& prompt = job.task.prompts[number / static_cast<size_t>(job.task.n)];
  const int64_t room = model_.config().model.max_position_embeddings - std::ssize(prompt);
  return {.job = &job,
          .number = number,
          .stops = StopFinder(job.task.stop),
          .room = std::min(job.task.sampling.max_tokens, room)};
}

Sampling Engine::sampling_of(const Text& text) const {
  Sampling sampling = text.job->task.sampling;
  sampling.seed += text.number % static_cast<size_t>(text.job->task.n);
  return sampling;
}

// Fills the free places, a text of each job in turn, as far as reading their prompts is one pass's work.
void Engine::begin_texts() {
  size_t read = 0;
  std::set<std::pair<Job*, size_t>> begun;  // prompts: the generator reads one of several texts once
  while (running_.size() < limits_.max_batch) {
    Job* next = nullptr;
    for (auto& job : jobs_) {
      if (!job.ready.empty() && (!next || job.served < next->served)) next = &job;
    }
    if (!next) return;
    const size_t number = next->ready.back();
    const size_t index = number / static_cast<size_t>(next->task.n);
    const auto& prompt = next->task.prompts[index];
    if (!begun.contains({next, index})) {
      if (read > 0 && read + prompt.size() > kPassTokens) return;
      read += prompt.size();
      begun.emplace(next, index);
    }
    next->ready.pop_back();
    give_turn(*next);
    auto text = new_text(*next, number);
    if (text.room == 0) {
      next->answer->push({.text = number, .finish = "length"});
      --next->unfinished;
      continue;
    }
    if (!next->task.score_prompts && number % static_cast<size_t>(next->task.n) == 0) {
      metrics_.count_tokens(std::ssize(prompt), 0);
    }
    const auto sampling = sampling_of(text);
    running_.emplace(generator_->add(prompt, sampling), std::move(text));
  }
}

void Engine::step() {
  if (running_.empty()) return;
  metrics_.observe_batch(std::ssize(running_));
  for (auto& made : generator_->step()) {
    const auto text = running_.find(made.text);
    if (take_token(text->second, made.drawn, !made.id, std::move(made.logprobs))) continue;
    generator_->remove(made.text);
    running_.erase(text);
  }
}

// Adds a token to a text, and says whether the text goes on. `ended`: the token is no part of it.
bool Engine::take_token(Text& text, std::optional<int64_t> drawn, bool ended,
                        std::optional<TokenLogprobs> logprobs) {
  Job& job = *text.job;
  Event event{.text = text.number};
  if (drawn) {
    event.made = 1;
    ++text.made;
    if (logprobs) event.tokens.push_back({*drawn, std::move(logprobs)});
    if (text.made > 1) metrics_.observe_next_token(seconds_since(text.last));
    if (!job.timed) metrics_.observe_first_token(seconds_since(job.arrived));
    job.timed = true;
    text.last = Clock::now();
    metrics_.count_tokens(0, 1);
  }
  if (ended) {
    event.finish = drawn ? "stop" : "length";
  } else {
    // The model may know more ids than the tokenizer.
    const bool known = *drawn < tokenizer_.vocab_size();
    event.content =
        text.stops.add(text.joiner.add(known ? tokenizer_.bytes(static_cast<int32_t>(*drawn)) : ""));
    if (text.stops.found()) {
      event.finish = "stop";
    } else if (text.made >= text.room) {
      event.finish = "length";
    }
  }
  if (event.finish && !text.stops.found()) {
    event.content += text.stops.add(text.joiner.finish());
    event.content += text.stops.finish();
    if (text.stops.found()) event.finish = "stop";
  }
  const bool goes_on = !event.finish;
  job.answer->push(std::move(event));
  if (!goes_on) --job.unfinished;
  return goes_on;
}

}  // namespace hero
