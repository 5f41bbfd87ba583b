#include "train/evaluate.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "ops/ops.h"

namespace hero {

Evaluation evaluate(const Transformer& model, const SequentialReader& reader, int64_t sequence, int64_t batch,
                    const std::function<void(int64_t)>& on_progress) {
  at::NoGradGuard no_grad;
  Evaluation result;
  double sum = 0;
  for (int64_t first = 0; first < reader.windows(); first += batch) {
    const int64_t count = std::min(batch, reader.windows() - first);
    auto windows = at::empty({count, sequence + 1}, at::kLong);
    auto targets = at::empty({count, sequence}, at::kLong);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t valid = reader.read(first + i, windows[i].data_ptr<int64_t>());
      targets[i].copy_(windows[i].slice(0, 1));
      targets[i].slice(0, valid).fill_(-1);
      result.tokens += valid;
    }
    const auto output = model.forward(windows.slice(1, 0, sequence).contiguous().to(model.device()));
    const auto targets_T = targets.view({-1}).to(model.device());
    sum += ops::linear_cross_entropy(output.hidden_TD, model.head(), targets_T).item<double>();
    on_progress(first + count);
  }
  result.loss = sum / static_cast<double>(result.tokens);
  result.perplexity = std::exp(result.loss);
  return result;
}

}  // namespace hero
