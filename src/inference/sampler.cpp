#include "inference/sampler.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "model/random.h"

namespace hero {
namespace {

constexpr size_t kPrefillTokens = 4096;  // positions of new prompts in one pass
constexpr int64_t kInitialSorted = 64;   // ids sorted at first; grows by factors of 4 on demand

// Ids by descending logit, ties by the lower id. Sorted lazily, only as far as they are accessed.
class SortedIds {
 public:
  explicit SortedIds(const at::Tensor& logits_V)
      : logits_(logits_V), z_(logits_.const_data_ptr<double>()), ids_(static_cast<size_t>(logits_.numel())) {
    std::iota(ids_.begin(), ids_.end(), 0);
  }

  int64_t operator[](int64_t rank) {
    if (rank >= sorted_) sort_to(std::max({rank + 1, kInitialSorted, 4 * sorted_}));
    return ids_[static_cast<size_t>(rank)];
  }

 private:
  void sort_to(int64_t count) {
    count = std::min(count, std::ssize(ids_));
    std::partial_sort(ids_.begin() + sorted_, ids_.begin() + count, ids_.end(),
                      [this](int64_t a, int64_t b) { return z_[a] > z_[b] || (z_[a] == z_[b] && a < b); });
    sorted_ = count;
  }

  at::Tensor logits_;  // [V] fp64, contiguous
  const double* z_;
  std::vector<int64_t> ids_;
  int64_t sorted_ = 0;
};

// The maximum of a block of logits; nothing if one is NaN. Vectorized by the compiler, unlike at::argmax.
std::optional<float> block_max(const float* logits, int64_t count) {
  constexpr int64_t kLanes = 16;
  std::array<float, kLanes> highest;
  highest.fill(-INFINITY);
  int nan = 0;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) {
      const float logit = logits[i + j];
      highest[j] = logit > highest[j] ? logit : highest[j];
      nan |= logit != logit;
    }
  }
  for (; i < count; ++i) {
    highest[0] = std::max(highest[0], logits[i]);
    nan |= logits[i] != logits[i];
  }
  return nan ? std::nullopt : std::optional(*std::ranges::max_element(highest));
}

// The lowest id with the maximum logit.
int64_t greedy_token(const at::Tensor& logits_V) {
  if (logits_V.scalar_type() != at::kFloat || !logits_V.is_contiguous())
    return logits_V.argmax().item<int64_t>();
  constexpr int64_t kBlock = 256;
  const auto* const logits = logits_V.const_data_ptr<float>();
  const int64_t count = logits_V.numel();
  const float* best = logits;
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t size = std::min(kBlock, count - first);
    const auto highest = block_max(logits + first, size);
    if (!highest) return logits_V.argmax().item<int64_t>();
    if (*highest > *best) best = std::find(logits + first, logits + first + size, *highest);
  }
  return best - logits;
}

}  // namespace

int64_t sample_token(const at::Tensor& logits_V, const SamplingParams& sampling, uint64_t index) {
  if (sampling.temperature <= 0) return greedy_token(logits_V);
  const auto logits = logits_V.to(at::kDouble).contiguous();
  auto weights = ((logits - logits.max()) / sampling.temperature).exp_();
  const auto* weight = weights.const_data_ptr<double>();
  SortedIds ids(logits);
  int64_t kept = logits.numel();
  double total = 0;
  if (sampling.top_k > 0 && sampling.top_k < kept) {
    kept = sampling.top_k;
    for (int64_t i = 0; i < kept; ++i) total += weight[ids[i]];
  } else {
    total = weights.sum().item<double>();
  }
  double mass = total;
  if (sampling.top_p < 1) {
    mass = 0;
    int64_t nucleus = 0;
    while (nucleus < kept && (nucleus == 0 || mass < sampling.top_p * total)) mass += weight[ids[nucleus++]];
    kept = nucleus;
  }
  double remaining = uniform_at(sampling.seed, "generate", index) * mass;
  int64_t rank = 0;
  while (rank + 1 < kept && remaining >= weight[ids[rank]]) remaining -= weight[ids[rank++]];
  return ids[rank];
}

TokenLogprobs token_logprobs(const at::Tensor& logits_V, int64_t id, int64_t top) {
  const auto logsumexp = logits_V.logsumexp(0);
  TokenLogprobs result{(logits_V[id] - logsumexp).item<double>(), {}};
  if (top == 0) return result;
  const auto [values, ids] = logits_V.topk(std::min(top, logits_V.size(0)));
  const auto logs = (values - logsumexp).to(at::kDouble);
  for (int64_t i = 0; i < ids.size(0); ++i) {
    result.top.emplace_back(ids[i].item<int64_t>(), logs[i].item<double>());
  }
  return result;
}

size_t Generator::add(std::vector<int64_t> prompt, const SamplingParams& sampling,
                      std::shared_ptr<KeyValueCache> cache) {
  const int64_t free_positions =
      model_.config().model.max_position_embeddings - static_cast<int64_t>(prompt.size());
  auto sequence = std::make_unique<Sequence>();
  sequence->id = next_id_++;
  sequence->sampling = sampling;
  sequence->pending = std::move(prompt);
  sequence->cache = cache ? std::move(cache) : std::make_shared<KeyValueCache>();
  const int64_t cached = sequence->cache->length;
  TORCH_CHECK(cached < std::ssize(sequence->pending), "Generator::add: expected a cache of fewer than the ",
              sequence->pending.size(), " tokens of the prompt, got ", cached);
  sequence->pending.erase(sequence->pending.begin(), sequence->pending.begin() + cached);
  sequence->max_new_tokens = std::min(sampling.max_tokens, free_positions);
  sequences_.push_back(std::move(sequence));
  return next_id_ - 1;
}

// Runs the pending tokens of all sequences in one pass. Returns the next-token logits [B, V] on the CPU.
at::Tensor Generator::forward(const std::vector<Sequence*>& batch) {
  std::vector<int64_t> tokens, counts, last;
  std::vector<KeyValueCache*> caches;
  for (auto* sequence : batch) {
    if (!sequence->sampling.cache) *sequence->cache = {};
    tokens.insert(tokens.end(), sequence->pending.begin(), sequence->pending.end());
    counts.push_back(static_cast<int64_t>(sequence->pending.size()));
    last.push_back(static_cast<int64_t>(tokens.size()) - 1);
    caches.push_back(sequence->cache.get());
  }
  const c10::InferenceMode inference;
  const auto device = model_.device();
  auto hidden = model_.extend(at::tensor(tokens, at::kLong).to(device), caches, counts, buffers_);
  if (tokens.size() > batch.size()) hidden = hidden.index_select(0, at::tensor(last, at::kLong).to(device));
  return model_.logits(hidden, 1)[0].cpu();
}

// `first` and the other new sequences with the same prompt and a cache.
std::vector<Generator::Sequence*> Generator::with_same_prompt(const Sequence& first) const {
  const auto starts_empty = [](const Sequence& sequence) {
    return sequence.num_generated == 0 && sequence.max_new_tokens > 0 && sequence.sampling.cache &&
           sequence.cache->length == 0;
  };
  std::vector<Sequence*> same;
  for (const auto& sequence : sequences_) {
    const bool equal = starts_empty(first) && starts_empty(*sequence) && sequence->pending == first.pending;
    if (sequence.get() == &first || equal) same.push_back(sequence.get());
  }
  return same;
}

Generator::GeneratedToken Generator::append_token(Sequence& sequence, const at::Tensor& logits_V) {
  const auto& sampling = sequence.sampling;
  const int64_t id = sample_token(logits_V, sampling, static_cast<uint64_t>(sequence.num_generated++));
  std::optional<TokenLogprobs> logprobs;
  if (sampling.logprobs >= 0) logprobs = token_logprobs(logits_V, id, sampling.logprobs);
  if (std::ranges::find(sampling.eos, id) != sampling.eos.end()) {
    sequence.max_new_tokens = 0;
    return {sequence.id, std::nullopt, id, std::move(logprobs)};
  }
  if (sampling.cache) sequence.pending.clear();
  sequence.pending.push_back(id);
  return {sequence.id, id, id, std::move(logprobs)};
}

// Runs the prompts of new sequences, without cached positions, in passes of at most kPrefillTokens positions.
void Generator::prefill(std::vector<Sequence*> waiting, std::vector<GeneratedToken>& generated) {
  while (!waiting.empty()) {
    std::vector<Sequence*> batch;
    std::vector<std::vector<Sequence*>> groups;  // groups[i]: the sequences that share the prompt of batch[i]
    size_t positions = 0;
    while (!waiting.empty() &&
           (batch.empty() || positions + waiting.front()->pending.size() <= kPrefillTokens)) {
      auto* first = waiting.front();
      batch.push_back(first);
      positions += first->pending.size();
      groups.push_back(first->sampling.cache ? with_same_prompt(*first) : std::vector<Sequence*>{first});
      const auto& group = groups.back();
      std::erase_if(waiting,
                    [&](auto* sequence) { return std::ranges::find(group, sequence) != group.end(); });
    }
    const auto logits = forward(batch);
    for (size_t i = 0; i < batch.size(); ++i) {
      for (auto* sequence : groups[i]) {
        if (sequence != batch[i]) *sequence->cache = *batch[i]->cache;
      }
      for (auto* sequence : groups[i])
        generated.push_back(append_token(*sequence, logits[static_cast<int64_t>(i)]));
    }
  }
}

std::vector<Generator::GeneratedToken> Generator::step() {
  std::vector<GeneratedToken> generated;
  std::vector<Sequence*> decoding, waiting;
  for (const auto& sequence : sequences_) {
    if (sequence->num_generated >= sequence->max_new_tokens) {
      generated.push_back({sequence->id, std::nullopt, std::nullopt, std::nullopt});
      sequence->max_new_tokens = 0;
    } else {
      const bool from_start = sequence->num_generated == 0 || !sequence->sampling.cache;
      (from_start ? waiting : decoding).push_back(sequence.get());
    }
  }
  prefill(std::move(waiting), generated);
  if (!decoding.empty()) {
    const auto logits = forward(decoding);
    for (size_t i = 0; i < decoding.size(); ++i) {
      generated.push_back(append_token(*decoding[i], logits[static_cast<int64_t>(i)]));
    }
  }
  std::erase_if(sequences_, [](const auto& sequence) { return sequence->max_new_tokens == 0; });
  return generated;
}

void Generator::remove(size_t sequence) {
  std::erase_if(sequences_, [sequence](const auto& other) { return other->id == sequence; });
}

std::vector<int64_t> generate(const Transformer& model, const std::vector<int64_t>& prompt,
                              const SamplingParams& sampling, const std::function<void(int64_t)>& on_token) {
  Generator generator(model);
  generator.add(prompt, sampling);
  std::vector<int64_t> generated;
  for (;;) {
    const auto id = generator.step().front().id;
    if (!id) return generated;
    generated.push_back(*id);
    on_token(*id);
  }
}

}  // namespace hero
