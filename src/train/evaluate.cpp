#include "train/evaluate.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "ops/ops.h"

namespace hero {

MicroBatch read_windows(const SequentialReader& reader, int64_t first, int64_t count, int64_t sequence,
                        const TrainConfig& train, at::Device device) {
  const auto samples = at::empty({count, sequence + 1}, at::kLong), labels = at::empty_like(samples);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t valid = reader.read(first + i, samples[i].data_ptr<int64_t>());
    labels[i].copy_(samples[i]).slice(0, valid + 1).fill_(-1);
  }
  MicroBatch batch{.samples = samples.to(device), .position = {}, .labels = labels.to(device)};
  if (train.document_mask || train.document_positions) {
    const auto starts = at::empty_like(samples);
    for (int64_t i = 0; i < count; ++i) reader.read_starts(first + i, starts[i].data_ptr<int64_t>());
    batch.position.starts_BS = starts.slice(1, 0, sequence).contiguous().to(device);
  }
  return batch;
}

at::Tensor read_masks(const SequentialReader& reader, int64_t first, int64_t count, int64_t sequence,
                      at::Device device) {
  const auto mask = at::empty({count, sequence + 1}, at::kLong);
  for (int64_t i = 0; i < count; ++i) reader.read_mask(first + i, mask[i].data_ptr<int64_t>());
  return mask.ne(0).to(device);
}

namespace {

// Adds the cross-entropies of the rows that the mask marks.
void add_trained(const Transformer& model, const Transformer::Output& output, const at::Tensor& targets_T,
                 const at::Tensor& mask, Evaluation::Loss& found) {
  const auto marked_T = mask.slice(1, 1).reshape({-1});
  const auto rows = marked_T.logical_and(targets_T.ge(0)).nonzero().squeeze(1);
  if (rows.size(0) == 0) return;
  found.tokens += rows.size(0);
  found.loss += ops::linear_cross_entropy(output.hidden_TD.index_select(0, rows), model.head(),
                                          targets_T.index_select(0, rows))
                    .item<double>();
}

void finish(Evaluation::Loss& found) {
  found.loss /= static_cast<double>(std::max<int64_t>(found.tokens, 1));
  found.perplexity = std::exp(found.loss);
}

}  // namespace

Evaluation evaluate(const Transformer& model, const SequentialReader& reader, int64_t sequence, int64_t batch,
                    const std::function<void(int64_t)>& on_progress) {
  at::NoGradGuard no_grad;
  Evaluation result;
  result.all.tokens = reader.targets(reader.windows());
  if (reader.has_mask()) result.trained.emplace();
  for (int64_t first = 0; first < reader.windows(); first += batch) {
    const int64_t count = std::min(batch, reader.windows() - first);
    const auto windows = read_windows(reader, first, count, sequence, model.config().train, model.device());
    const auto output = model.forward(windows.samples.slice(1, 0, sequence).contiguous(), windows.position);
    const auto targets_T = windows.labels.slice(1, 1).reshape({-1});
    result.all.loss += ops::linear_cross_entropy(output.hidden_TD, model.head(), targets_T).item<double>();
    if (result.trained) {
      const auto mask = read_masks(reader, first, count, sequence, model.device());
      add_trained(model, output, targets_T, mask, *result.trained);
    }
    on_progress(first + count);
  }
  finish(result.all);
  if (result.trained) finish(*result.trained);
  return result;
}

}  // namespace hero
