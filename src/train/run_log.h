#pragma once
// Logs of a step in the run folder: a line in metrics.jsonl, periodic snapshots in routing.jsonl, TensorBoard
// events in tb/.
#include <filesystem>

#include "loss/loss.h"
#include "train/layer_stats.h"
#include "train/metrics.h"
#include "train/norms.h"
#include "train/pipeline.h"
#include "train/tensorboard.h"
#include "train/validation.h"

namespace hero {

/// Metrics of one step. Losses are means over the step's micro-batches.
struct StepRecord {
  int64_t step = 0, tokens = 0;
  double loss = 0, lm = 0, balance = 0, z = 0, coupling = 0;
  std::optional<double> mtp = {};  ///< mean over multi-token prediction modules; none without modules
  double lr = 0, gradient_norm = 0;
  int64_t skipped = 0;                         ///< updates so far
  std::optional<int64_t> data_phase = {};      ///< from 1; none without phases
  std::optional<int64_t> trained_tokens = {};  ///< targets of the step that are trained on; none: all
  double milliseconds = 0, tokens_per_second = 0, mfu = 0, peak_memory_mib = 0;
  double max_expert_share = 0;       ///< of all tokens, over all layers
  std::vector<double> busy_ms = {};  ///< with several ranks: time not spent waiting, previous step
  Pipeline::Traffic traffic = {};    ///< between pipeline ranks
  std::optional<ValidationLosses> validation = {};  ///< after the step
};

class RunLog {
 public:
  explicit RunLog(const std::filesystem::path& run);

  /// The sums of `layers` must be on the CPU.
  void write(const StepRecord& step, const LayerStats& layers, const std::optional<Norms>& norms,
             bool snapshot);
  /// Adds the validation of the last logged step, which a stop signal had interrupted.
  void add_validation(int64_t step, const ValidationLosses& validation);
  /// Drops all entries after `step`, for resuming.
  void truncate_after(int64_t step);

 private:
  MetricsLog metrics_, routing_;
  TensorBoardLog tensorboard_;
};

/// Peak memory so far, MiB: resident memory of this process, or allocated tensor memory on a GPU.
double peak_memory_mib(at::Device device);

/// On a GPU, restarts the peak from what is allocated now; the peak of a process cannot be restarted.
void reset_peak_memory(at::Device device);

}  // namespace hero
