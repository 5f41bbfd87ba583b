#include "inference/sampler.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "model/random.h"

namespace hero {
namespace {

constexpr size_t kReadAtOnce = 4096;  // positions of new prompts in one pass
constexpr int64_t kFirstSorted = 64;  // ids put in order at first; then four times as many, as far as needed

// The ids of logits in falling order, ties by the lower id, sorted as far as they are looked at.
class Descending {
 public:
  explicit Descending(const at::Tensor& logits_V)
      : logits_(logits_V), z_(logits_.const_data_ptr<double>()), ids_(static_cast<size_t>(logits_.numel())) {
    std::iota(ids_.begin(), ids_.end(), 0);
  }

  int64_t operator[](int64_t place) {
    if (place >= sorted_) sort_to(std::max({place + 1, kFirstSorted, 4 * sorted_}));
    return ids_[static_cast<size_t>(place)];
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

// The first of the largest logits. amax goes over whole vectors, argmax over single numbers.
int64_t likeliest(const at::Tensor& logits_V) {
  if (logits_V.scalar_type() == at::kFloat && logits_V.is_contiguous()) {
    const auto* first = logits_V.const_data_ptr<float>();
    const auto* last = first + logits_V.numel();
    const auto* found = std::find(first, last, logits_V.amax().item<float>());
    if (found != last) return found - first;  // else: not a number
  }
  return logits_V.argmax().item<int64_t>();
}

}  // namespace

int64_t choose_token(const at::Tensor& logits_V, const Sampling& sampling, uint64_t index) {
  if (sampling.temperature <= 0) return likeliest(logits_V);
  const auto logits = logits_V.to(at::kDouble).contiguous();
  auto weights = ((logits - logits.max()) / sampling.temperature).exp_();
  const auto* weight = weights.const_data_ptr<double>();
  Descending ids(logits);
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
  double left = uniform_at(sampling.seed, "generate", index) * mass;
  int64_t place = 0;
  while (place + 1 < kept && left >= weight[ids[place]]) left -= weight[ids[place++]];
  return ids[place];
}

TokenLogprobs token_logprobs(const at::Tensor& logits_V, int64_t id, int64_t top) {
  const auto sum = logits_V.logsumexp(0);
  TokenLogprobs found{(logits_V[id] - sum).item<double>(), {}};
  if (top == 0) return found;
  const auto [values, ids] = logits_V.topk(std::min(top, logits_V.size(0)));
  const auto logs = (values - sum).to(at::kDouble);
  for (int64_t i = 0; i < ids.size(0); ++i) {
    found.top.emplace_back(ids[i].item<int64_t>(), logs[i].item<double>());
  }
  return found;
}

size_t Generator::add(std::vector<int64_t> prompt, const Sampling& sampling) {
  const int64_t room = model_.config().model.max_position_embeddings - static_cast<int64_t>(prompt.size());
  auto text = std::make_unique<Text>();
  text->number = count_++;
  text->sampling = sampling;
  text->unread = std::move(prompt);
  text->room = std::min(sampling.max_tokens, room);
  texts_.push_back(std::move(text));
  return count_ - 1;
}

// Reads what is unread of these texts in one pass. Returns the logits [texts, V] after each, on the CPU.
at::Tensor Generator::read(const std::vector<Text*>& texts) const {
  std::vector<int64_t> tokens, counts, last;
  std::vector<KeyValueCache*> caches;
  for (auto* text : texts) {
    if (!text->sampling.cache) text->cache = {};
    tokens.insert(tokens.end(), text->unread.begin(), text->unread.end());
    counts.push_back(static_cast<int64_t>(text->unread.size()));
    last.push_back(static_cast<int64_t>(tokens.size()) - 1);
    caches.push_back(&text->cache);
  }
  const c10::InferenceMode inference;
  const auto device = model_.device();
  auto hidden = model_.extend(at::tensor(tokens, at::kLong).to(device), caches, counts);
  if (tokens.size() > texts.size()) hidden = hidden.index_select(0, at::tensor(last, at::kLong).to(device));
  return model_.logits(hidden, 1)[0].cpu();
}

// `first` and the other texts that begin with the same prompt and keep a cache.
std::vector<Generator::Text*> Generator::same_prompt(const Text& first) const {
  std::vector<Text*> same;
  for (const auto& text : texts_) {
    const bool begins = text->made == 0 && text->room > 0 && text->sampling.cache;
    if (text.get() == &first || (begins && text->unread == first.unread)) same.push_back(text.get());
  }
  return same;
}

Generator::Made Generator::take(Text& text, const at::Tensor& logits_V) {
  const int64_t id = choose_token(logits_V, text.sampling, static_cast<uint64_t>(text.made++));
  std::optional<TokenLogprobs> logprobs;
  if (text.sampling.logprobs >= 0) logprobs = token_logprobs(logits_V, id, text.sampling.logprobs);
  if (std::ranges::find(text.sampling.eos, id) != text.sampling.eos.end()) {
    text.room = 0;
    return {text.number, std::nullopt, id, std::move(logprobs)};
  }
  if (text.sampling.cache) text.unread.clear();
  text.unread.push_back(id);
  return {text.number, id, id, std::move(logprobs)};
}

// Texts to be read from their first positions, some at a time.
void Generator::read_begun(std::vector<Text*> begun, std::vector<Made>& made) const {
  while (!begun.empty()) {
    std::vector<Text*> firsts;
    std::vector<std::vector<Text*>> equal;  // of each, the texts that its reading serves
    size_t positions = 0;
    while (!begun.empty() && (firsts.empty() || positions + begun.front()->unread.size() <= kReadAtOnce)) {
      auto* first = begun.front();
      firsts.push_back(first);
      positions += first->unread.size();
      equal.push_back(first->sampling.cache ? same_prompt(*first) : std::vector<Text*>{first});
      std::erase_if(begun,
                    [&](auto* text) { return std::ranges::find(equal.back(), text) != equal.back().end(); });
    }
    const auto logits = read(firsts);
    for (size_t i = 0; i < firsts.size(); ++i) {
      for (auto* text : equal[i]) {
        if (text != firsts[i]) text->cache = firsts[i]->cache;
      }
      for (auto* text : equal[i]) made.push_back(take(*text, logits[static_cast<int64_t>(i)]));
    }
  }
}

std::vector<Generator::Made> Generator::step() {
  std::vector<Made> made;
  std::vector<Text*> together, begun;
  for (const auto& text : texts_) {
    if (text->made >= text->room) {
      made.push_back({text->number, std::nullopt, std::nullopt, std::nullopt});
      text->room = 0;
    } else {
      (text->made == 0 || !text->sampling.cache ? begun : together).push_back(text.get());
    }
  }
  read_begun(std::move(begun), made);
  if (!together.empty()) {
    const auto logits = read(together);
    for (size_t i = 0; i < together.size(); ++i) {
      made.push_back(take(*together[i], logits[static_cast<int64_t>(i)]));
    }
  }
  std::erase_if(texts_, [](const auto& text) { return text->room == 0; });
  return made;
}

void Generator::remove(size_t text) {
  std::erase_if(texts_, [text](const auto& other) { return other->number == text; });
}

std::vector<int64_t> generate(const Transformer& model, const std::vector<int64_t>& prompt,
                              const Sampling& sampling, const std::function<void(int64_t)>& on_token) {
  Generator generator(model);
  generator.add(prompt, sampling);
  std::vector<int64_t> made;
  for (;;) {
    const auto id = generator.step().front().id;
    if (!id) return made;
    made.push_back(*id);
    on_token(*id);
  }
}

}  // namespace hero
