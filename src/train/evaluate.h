#pragma once
// Loss of a model on held-out data.
#include <functional>
#include <optional>

#include "data/sampler.h"
#include "model/transformer.h"
#include "train/pipeline.h"

namespace hero {

struct Evaluation {
  /// Of the predicted tokens of a data set, or of those that its loss mask marks.
  struct Loss {
    int64_t tokens = 0;
    double loss = 0;        ///< mean cross-entropy per token, nats; 0 without tokens
    double perplexity = 0;  ///< e^loss
  };
  Loss all;
  std::optional<Loss> trained;  ///< if the reader has a mask
};

/// Reads windows [first, first + count) of `sequence` tokens with labels and, if `train` has documents
/// separated, their starts.
MicroBatch read_windows(const SequentialReader& reader, int64_t first, int64_t count, int64_t sequence,
                        const TrainConfig& train, at::Device device);

/// The loss mask of these windows, [count, sequence + 1].
at::Tensor read_masks(const SequentialReader& reader, int64_t first, int64_t count, int64_t sequence,
                      at::Device device);

/// Predicts every token except the first once, in windows of the reader's sequence length, `batch` windows at
/// a time, with attention and positions as in training. Calls `on_progress` with the number of completed
/// windows.
Evaluation evaluate(const Transformer& model, const SequentialReader& reader, int64_t sequence, int64_t batch,
                    const std::function<void(int64_t)>& on_progress);

}  // namespace hero
