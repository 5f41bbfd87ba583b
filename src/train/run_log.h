#pragma once
// What a step leaves in the run folder: a line in metrics.jsonl, now and then a snapshot in routing.jsonl,
// TensorBoard events in tb/.
#include <filesystem>

#include "loss/loss.h"
#include "train/layer_stats.h"
#include "train/metrics.h"
#include "train/pipeline.h"
#include "train/tensorboard.h"

namespace hero {

/// One step as it is logged. Losses are means over the step's micro-batches.
struct StepRecord {
  int64_t step = 0, tokens = 0;
  double loss = 0, lm = 0, balance = 0, z = 0, coupling = 0;
  double lr = 0, gradient_norm = 0;
  double milliseconds = 0, tokens_per_second = 0, mfu = 0, peak_memory_mib = 0;
  std::vector<double> busy_ms = {};  ///< of several ranks: what each did not wait for others, the step before
  Pipeline::Traffic traffic = {};    ///< between pipeline ranks
};

class RunLog {
 public:
  explicit RunLog(const std::filesystem::path& run);

  /// `layers` with sums on the CPU.
  void write(const StepRecord& step, const LayerStats& layers, bool snapshot);
  /// Drops everything after `step`, for resuming.
  void cut_to(int64_t step);

 private:
  MetricsLog metrics_, routing_;
  TensorBoardLog board_;
};

/// Highest memory so far, MiB: what this process had resident, or on a GPU what its tensors took there.
double peak_memory_mib(at::Device device);

/// Operations per second of a square matrix product of this type on this device, the library's or ours
/// (ops::linear), the best of a few; of 1024 rows on the CPU, of 8192 elsewhere.
double gemm_rate(at::ScalarType dtype, at::Device device);

}  // namespace hero
