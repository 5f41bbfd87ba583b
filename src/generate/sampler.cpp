#include "generate/sampler.h"

#include <ATen/ATen.h>

#include "model/random.h"

namespace hero {

int64_t choose_token(const at::Tensor& logits_V, const Sampling& sampling, uint64_t index) {
  const auto logits = logits_V.to(at::kCPU).to(at::kDouble);
  if (sampling.temperature <= 0) return logits.argmax().item<int64_t>();
  const auto [sorted, ids] = logits.sort(/*stable=*/true, /*dim=*/0, /*descending=*/true);
  int64_t kept = sorted.size(0);
  if (sampling.top_k > 0) kept = std::min(kept, sampling.top_k);
  auto probs = (sorted.slice(0, 0, kept) / sampling.temperature).softmax(0).contiguous();
  const auto* p = probs.const_data_ptr<double>();
  double mass = 0;
  int64_t nucleus = 0;
  while (nucleus < kept && (nucleus == 0 || mass < sampling.top_p)) mass += p[nucleus++];
  double left = uniform_at(sampling.seed, "generate", index) * mass;
  int64_t chosen = 0;
  while (chosen + 1 < nucleus && left >= p[chosen]) left -= p[chosen++];
  return ids[chosen].item<int64_t>();
}

Generation::Generation(const Transformer& model, std::vector<int64_t> prompt, const Sampling& sampling)
    : model_(model), sampling_(sampling), unread_(std::move(prompt)) {
  const int64_t positions = model.config().model.max_position_embeddings;
  room_ = std::min(sampling.max_tokens, positions - static_cast<int64_t>(unread_.size()));
}

std::optional<int64_t> Generation::next() {
  if (made_ >= room_) return std::nullopt;
  at::NoGradGuard no_grad;
  const auto tokens = at::tensor(unread_, at::kLong).unsqueeze(0).to(model_.device());
  const auto output = model_.forward(tokens, {}, false, sampling_.cache ? &cache_ : nullptr);
  const auto logits = model_.logits(output.hidden_TD.slice(0, output.hidden_TD.size(0) - 1), 1);
  const int64_t id = choose_token(logits.view({-1}), sampling_, static_cast<uint64_t>(made_));
  ++made_;
  if (id == sampling_.eos) {
    room_ = 0;
    return std::nullopt;
  }
  if (sampling_.cache) unread_.clear();
  unread_.push_back(id);
  return id;
}

std::vector<int64_t> generate(const Transformer& model, const std::vector<int64_t>& prompt,
                              const Sampling& sampling, const std::function<void(int64_t)>& on_token) {
  Generation generation(model, prompt, sampling);
  std::vector<int64_t> made;
  while (const auto id = generation.next()) {
    made.push_back(*id);
    on_token(*id);
  }
  return made;
}

}  // namespace hero
