#include "inference/server/scoring.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace hero {
namespace {

constexpr int64_t kChunkBytes = 1 << 26;  // of fp32 logits held at a time

// Of rows of hidden states, each with the id that follows.
void score_rows(const Transformer& model, const at::Tensor& hidden_ND, std::span<const int64_t> ids,
                int64_t top, std::vector<TokenLogprobs>& scored) {
  const auto logits_NV = model.logits(hidden_ND, 1)[0];
  const auto sums_N1 = logits_NV.logsumexp(1, /*keepdim=*/true);
  const auto wanted = at::tensor(c10::IntArrayRef(ids.data(), ids.size()), at::kLong).to(logits_NV.device());
  const auto chosen = (logits_NV.gather(1, wanted.unsqueeze(1)) - sums_N1).to(at::kDouble).cpu();
  const auto [values, likeliest] = logits_NV.topk(std::min(top, logits_NV.size(1)), 1);
  const auto logs = (values - sums_N1).to(at::kDouble).cpu().contiguous();
  const auto top_ids = likeliest.cpu().contiguous();
  const int64_t width = top_ids.size(1);
  for (int64_t row = 0; row < std::ssize(ids); ++row) {
    TokenLogprobs one{chosen.const_data_ptr<double>()[row], {}};
    for (int64_t i = row * width; i < (row + 1) * width; ++i) {
      one.top.emplace_back(top_ids.const_data_ptr<int64_t>()[i], logs.const_data_ptr<double>()[i]);
    }
    scored.push_back(std::move(one));
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

  const int64_t chunk = std::max<int64_t>(1, kChunkBytes / (4 * model.config().model.vocab_size));
  std::vector<ScoredPrompt> scored(prompts.size());
  for (int64_t b = 0; b < count; ++b) {
    const int64_t first = b * length, known = std::ssize(prompts[b]) - 1;
    for (int64_t begin = 0; begin < known; begin += chunk) {
      const int64_t end = std::min(known, begin + chunk);
      score_rows(model, hidden_TD.slice(0, first + begin, first + end),
                 prompts[b].subspan(begin + 1, end - begin), top[b], scored[b].tokens);
    }
    const auto last_1D = hidden_TD.slice(0, first + known, first + known + 1);
    scored[b].next_V = model.logits(last_1D, 1)[0][0].cpu();
  }
  return scored;
}

}  // namespace hero
