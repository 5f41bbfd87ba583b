#include "inference/server/scoring.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "inference/logits.h"

namespace hero {
namespace {

// Scores rows of hidden states, each with the id of its next token.
void score_rows(const Transformer& model, const at::Tensor& hidden_ND, std::span<const int64_t> ids,
                int64_t top, std::vector<TokenLogprobs>& scored) {
  const auto logits_NV = model.logits(hidden_ND, 1)[0];
  const auto logsumexp_N1 = logits_NV.logsumexp(1, /*keepdim=*/true);
  const auto targets = at::tensor(c10::IntArrayRef(ids.data(), ids.size()), at::kLong).to(logits_NV.device());
  const auto chosen = (logits_NV.gather(1, targets.unsqueeze(1)) - logsumexp_N1).to(at::kDouble).cpu();
  const auto [values, indices] = logits_NV.topk(std::min(top, logits_NV.size(1)), 1);
  const auto top_logprobs = (values - logsumexp_N1).to(at::kDouble).cpu().contiguous();
  const auto top_ids = indices.cpu().contiguous();
  const int64_t width = top_ids.size(1);
  for (int64_t row = 0; row < std::ssize(ids); ++row) {
    TokenLogprobs token{chosen.const_data_ptr<double>()[row], {}};
    for (int64_t i = row * width; i < (row + 1) * width; ++i) {
      token.top.emplace_back(top_ids.const_data_ptr<int64_t>()[i], top_logprobs.const_data_ptr<double>()[i]);
    }
    scored.push_back(std::move(token));
  }
}

}  // namespace

std::vector<ScoredPrompt> score_prompts(const Transformer& model,
                                        const std::vector<std::span<const int64_t>>& prompts,
                                        const std::vector<int64_t>& top) {
  at::NoGradGuard no_grad;
  size_t longest = 0;
  for (const auto& prompt : prompts) longest = std::max(longest, prompt.size());
  const auto length = static_cast<int64_t>(longest), count = std::ssize(prompts);
  auto tokens_BS = at::zeros({count, length}, at::kLong);
  for (int64_t b = 0; b < count; ++b) {
    std::ranges::copy(prompts[b], tokens_BS.data_ptr<int64_t>() + b * length);
  }
  const auto hidden_TD = model.forward(tokens_BS.to(model.device())).hidden_TD;

  const int64_t chunk = logits_chunk(model.config().model.vocab_size);
  std::vector<ScoredPrompt> scored(prompts.size());
  for (int64_t b = 0; b < count; ++b) {
    const int64_t first = b * length, targets = std::ssize(prompts[b]) - 1;
    for (int64_t begin = 0; begin < targets; begin += chunk) {
      const int64_t end = std::min(targets, begin + chunk);
      score_rows(model, hidden_TD.slice(0, first + begin, first + end),
                 prompts[b].subspan(begin + 1, end - begin), top[b], scored[b].tokens);
    }
    const auto last_1D = hidden_TD.slice(0, first + targets, first + targets + 1);
    scored[b].next_V = model.logits(last_1D, 1)[0][0].cpu();
  }
  return scored;
}

}  // namespace hero
