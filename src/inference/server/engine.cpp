#include "inference/server/engine.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "inference/server/scoring.h"

namespace hero {
namespace {

// Prompt tokens in one forward pass. Between two passes every running sequence gets its next token.
constexpr size_t kMaxBatchedTokens = 4096;

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

std::shared_ptr<RequestOutput> Engine::submit(EngineRequest request) {
  const size_t sequences = request.prompts.size() * static_cast<size_t>(request.n);
  RequestState state;
  state.output = std::make_shared<RequestOutput>(sequences, request.stream);
  state.arrival = Clock::now();
  state.unfinished = sequences;
  auto& order = request.score_prompts ? state.unscored : state.waiting;
  for (size_t i = request.score_prompts ? request.prompts.size() : sequences; i-- > 0;) order.push_back(i);
  state.request = std::move(request);
  auto output = state.output;
  const std::lock_guard lock(mutex_);
  if (stopped_) throw ApiError(503, "the server is shutting down", "", "stopping");
  if (waiting_ >= limits_.max_queue) {
    throw ApiError(503,
                   "found " + std::to_string(waiting_) + " requests waiting, expected fewer than " +
                       std::to_string(limits_.max_queue) + ": try again later",
                   "", "queue_full");
  }
  incoming_.push_back(std::move(state));
  ++waiting_;
  changed_.notify_one();
  return output;
}

void Engine::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_one();
}

void Engine::run() {
  while (receive_requests()) {
    try {
      step();
    } catch (const std::exception& e) {
      // KV caches may be inconsistent: fail the started requests and replace the generator.
      const std::string what = e.what();  // a message, then lines of stack trace
      std::fprintf(stderr, "hero: serve: %s\n", what.substr(0, what.find('\n')).c_str());
      for (auto& state : requests_) {
        if (state.started) fail_request(state, ApiError(500, "the forward pass failed", "", "engine_error"));
      }
      remove_finished_requests();
      generator_ = std::make_unique<Generator>(model_);
    }
  }
  for (auto& state : requests_)
    fail_request(state, ApiError(503, "the server is shutting down", "", "stopping"));
  remove_finished_requests();
}

void Engine::step() {
  for (auto& state : requests_) {
    if (state.output->cancelled()) {
      metrics_.count_cancelled();
      state.unfinished = 0;
    } else if (Clock::now() >= state.request.deadline) {
      fail_request(state, timeout_error());
    }
  }
  remove_finished_requests();
  score_batch();
  admit_sequences();
  update_load_metrics();
  generate_tokens();
  remove_finished_requests();
  update_load_metrics();
}

// Waits for work; returns false once the engine is stopped.
bool Engine::receive_requests() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopped_ || !incoming_.empty() || !requests_.empty(); });
  for (auto& state : incoming_) state.last_turn = turn_;
  requests_.splice(requests_.end(), incoming_);
  return !stopped_;
}

void Engine::fail_request(RequestState& state, const ApiError& error) {
  state.output->fail(error);
  state.unfinished = 0;
}

// Removes requests without unfinished sequences.
void Engine::remove_finished_requests() {
  for (auto it = running_.begin(); it != running_.end();) {
    if (it->second.state->unfinished == 0) {
      generator_->remove(it->first);
      it = running_.erase(it);
    } else {
      ++it;
    }
  }
  const std::lock_guard lock(mutex_);
  std::erase_if(requests_, [this](const RequestState& state) {
    if (state.unfinished > 0) return false;
    waiting_ -= !state.started;
    return true;
  });
}

void Engine::mark_scheduled(RequestState& state) {
  state.last_turn = ++turn_;
  if (state.started) return;
  state.started = true;
  const std::lock_guard lock(mutex_);
  --waiting_;
}

void Engine::update_load_metrics() {
  const std::lock_guard lock(mutex_);
  metrics_.set_load(waiting_, running_.size());
}

// Scores the next prompt, round-robin over requests, with others of between half and all of its length.
void Engine::score_batch() {
  std::vector<std::pair<RequestState*, size_t>> candidates;
  RequestState* first = nullptr;
  for (auto& state : requests_) {
    if (state.unscored.empty()) continue;
    if (!first || state.last_turn < first->last_turn) first = &state;
    for (const size_t prompt : state.unscored) candidates.emplace_back(&state, prompt);
  }
  if (!first) return;
  const auto size = [](const auto& c) { return c.first->request.prompts[c.second].size(); };
  const std::pair<RequestState*, size_t> oldest{first, first->unscored.back()};
  const size_t longest = size(oldest);
  std::erase_if(candidates,
                [&](const auto& c) { return c == oldest || size(c) > longest || 2 * size(c) < longest; });
  std::ranges::sort(candidates, std::ranges::greater(), size);
  candidates.insert(candidates.begin(), oldest);
  candidates.resize(std::min(candidates.size(), std::max<size_t>(1, kMaxBatchedTokens / longest)));

  std::vector<std::span<const int64_t>> prompts;
  std::vector<int64_t> top;
  for (const auto& [state, prompt] : candidates) {
    mark_scheduled(*state);
    prompts.emplace_back(state->request.prompts[prompt]);
    top.push_back(state->request.sampling.logprobs);
  }
  const auto scored = score_prompts(model_, prompts, top);
  metrics_.observe_scored(static_cast<int64_t>(scored.size()));
  for (size_t i = 0; i < scored.size(); ++i) {
    const auto [state, prompt] = candidates[i];
    std::erase(state->unscored, prompt);
    process_scored_prompt(*state, prompt, scored[i].tokens, scored[i].next_V);
  }
}

// Outputs a prompt's log-probabilities. Also finishes sequences with max_tokens of 0 or 1, which need no
// decode step.
void Engine::process_scored_prompt(RequestState& state, size_t prompt,
                                   const std::vector<TokenLogprobs>& tokens, const at::Tensor& next_V) {
  const auto& ids = state.request.prompts[prompt];
  const auto logged = std::make_shared<LoggedTokens>();
  logged->add(ids[0], std::nullopt);
  for (size_t i = 1; i < ids.size(); ++i) logged->add(ids[i], tokens[i - 1]);
  const auto n = static_cast<size_t>(state.request.n);
  for (size_t index = (prompt + 1) * n; index-- > prompt * n;) {
    Sequence sequence = make_sequence(state, index);
    const bool finished = sequence.max_new_tokens == 0;
    state.output->push({.sequence = index, .prompt = logged, .finish_reason = finished ? "length" : nullptr});
    if (finished) {
      --state.unfinished;
    } else if (sequence.max_new_tokens == 1) {
      const auto sampling = sampling_params(sequence);
      const int64_t id = sample_token(next_V, sampling, 0);
      const bool is_eos = std::ranges::find(sampling.eos, id) != sampling.eos.end();
      process_token(sequence, id, is_eos, token_logprobs(next_V, id, sampling.logprobs));
    } else {
      state.waiting.push_back(index);
    }
  }
  metrics_.count_tokens(std::ssize(ids), 0);
}

Engine::Sequence Engine::make_sequence(RequestState& state, size_t index) const {
  const auto& prompt = state.request.prompts[index / static_cast<size_t>(state.request.n)];
  const int64_t free_positions = model_.config().model.max_position_embeddings - std::ssize(prompt);
  return {.state = &state,
          .index = index,
          .stops = StopStringMatcher(state.request.stop),
          .max_new_tokens = std::min(state.request.sampling.max_tokens, free_positions)};
}

SamplingParams Engine::sampling_params(const Sequence& sequence) const {
  SamplingParams sampling = sequence.state->request.sampling;
  sampling.seed += sequence.index % static_cast<size_t>(sequence.state->request.n);
  return sampling;
}

// Fills the free batch slots, round-robin over requests, with at most kMaxBatchedTokens prompt tokens.
void Engine::admit_sequences() {
  size_t prefill_tokens = 0;
  std::set<std::pair<RequestState*, size_t>> admitted;  // prompts: the generator prefills shared ones once
  while (running_.size() < limits_.max_batch) {
    RequestState* next = nullptr;
    for (auto& state : requests_) {
      if (!state.waiting.empty() && (!next || state.last_turn < next->last_turn)) next = &state;
    }
    if (!next) return;
    const size_t index = next->waiting.back();
    const size_t prompt_index = index / static_cast<size_t>(next->request.n);
    const auto& prompt = next->request.prompts[prompt_index];
    if (!admitted.contains({next, prompt_index})) {
      if (prefill_tokens > 0 && prefill_tokens + prompt.size() > kMaxBatchedTokens) return;
      prefill_tokens += prompt.size();
      admitted.emplace(next, prompt_index);
    }
    next->waiting.pop_back();
    mark_scheduled(*next);
    auto sequence = make_sequence(*next, index);
    if (sequence.max_new_tokens == 0) {
      next->output->push({.sequence = index, .finish_reason = "length"});
      --next->unfinished;
      continue;
    }
    if (!next->request.score_prompts && index % static_cast<size_t>(next->request.n) == 0) {
      metrics_.count_tokens(std::ssize(prompt), 0);
    }
    const auto sampling = sampling_params(sequence);
    running_.emplace(generator_->add(prompt, sampling), std::move(sequence));
  }
}

void Engine::generate_tokens() {
  if (running_.empty()) return;
  metrics_.observe_batch(std::ssize(running_));
  for (const auto& token : generator_->step()) {
    const auto entry = running_.find(token.sequence);
    if (process_token(entry->second, token.sampled, !token.id, token.logprobs)) continue;
    generator_->remove(token.sequence);
    running_.erase(entry);
  }
}

// Appends a token to a sequence and returns whether it is still running. `finished`: the generator has ended
// the sequence, and the token is not part of its text.
bool Engine::process_token(Sequence& sequence, std::optional<int64_t> sampled, bool finished,
                           const std::optional<TokenLogprobs>& logprobs) {
  RequestState& state = *sequence.state;
  SequenceOutput output{.sequence = sequence.index};
  if (sampled) {
    output.num_generated = 1;
    ++sequence.num_generated;
    if (logprobs) output.tokens.add(*sampled, logprobs);
    if (sequence.num_generated > 1) metrics_.observe_next_token(seconds_since(sequence.last_token));
    if (!state.has_first_token) metrics_.observe_first_token(seconds_since(state.arrival));
    state.has_first_token = true;
    sequence.last_token = Clock::now();
    metrics_.count_tokens(0, 1);
  }
  if (finished || !sampled) {
    output.finish_reason = sampled ? "stop" : "length";
  } else {
    // The model's vocabulary may be larger than the tokenizer's.
    const bool known = *sampled < tokenizer_.vocab_size();
    const std::string bytes = known ? tokenizer_.bytes(static_cast<int32_t>(*sampled)) : "";
    output.text = sequence.stops.add(sequence.decoder.add(bytes));
    if (sequence.stops.found()) {
      output.finish_reason = "stop";
    } else if (sequence.num_generated >= sequence.max_new_tokens) {
      output.finish_reason = "length";
    }
  }
  if (output.finish_reason && !sequence.stops.found()) {
    output.text += sequence.stops.add(sequence.decoder.flush());
    output.text += sequence.stops.flush();
    if (sequence.stops.found()) output.finish_reason = "stop";
  }
  const bool running = !output.finish_reason;
  state.output->push(std::move(output));
  if (!running) --state.unfinished;
  return running;
}

}  // namespace hero
