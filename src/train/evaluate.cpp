#include "train/evaluate.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "ops/ops.h"

namespace hero {

MicroBatch read_windows(const SequentialReader& reader, int64_t first, int64_t count, int64_t sequence) {
  MicroBatch batch{.samples = at::empty({count, sequence + 1}, at::kLong), .position = {}};
  batch.labels = at::empty_like(batch.samples);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t valid = reader.read(first + i, batch.samples[i].data_ptr<int64_t>());
    batch.labels[i].copy_(batch.samples[i]).slice(0, valid + 1).fill_(-1);
  }
  return batch;
}

Evaluation evaluate(const Transformer& model, const SequentialReader& reader, int64_t sequence, int64_t batch,
                    const std::function<void(int64_t)>& on_progress) {
  at::NoGradGuard no_grad;
  Evaluation result{.name = {}, .tokens = reader.targets(reader.windows())};
  double sum = 0;
  for (int64_t first = 0; first < reader.windows(); first += batch) {
    const int64_t count = std::min(batch, reader.windows() - first);
    const auto windows = read_windows(reader, first, count, sequence);
    const auto output = model.forward(windows.samples.slice(1, 0, sequence).contiguous().to(model.device()));
    const auto targets_T = windows.labels.slice(1, 1).reshape({-1}).to(model.device());
    sum += ops::linear_cross_entropy(output.hidden_TD, model.head(), targets_T).item<double>();
    on_progress(first + count);
  }
  result.loss = sum / static_cast<double>(result.tokens);
  result.perplexity = std::exp(result.loss);
  return result;
}

}  // namespace hero
