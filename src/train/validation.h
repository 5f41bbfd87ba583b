#pragma once
// Validation during training: the mean loss of held-out data, as hero eval computes it; with train.loss_mask
// that of the marked tokens, as in training. Micro-batches of train.micro_batch windows go to data ranks
// round-robin, so that every layout computes the same. Reads weights and data only: training is bitwise the
// same with and without it.
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/pipeline.h"
#include "train/validation_data.h"

namespace hero {

/// Mean cross-entropies in nats per predicted token, with train.loss_mask per marked one.
struct ValidationLosses {
  double loss = 0;                                   ///< over the tokens of all data sets
  std::vector<std::pair<std::string, double>> sets;  ///< by name, in the order of eval.data
};

class Validation {
 public:
  /// The model and the data sets must outlive the Validation. `world`: null for a single process.
  Validation(const Transformer& model, const std::deque<ValidationSet>& sets, const World* world);

  /// Collective. nullopt if a rank received a stop signal, which stop_signal() of all ranks returns then; it
  /// is queried after every micro-batch, with several ranks after those of a global batch. Calls
  /// `on_progress` as often, with the completed fraction.
  std::optional<ValidationLosses> run(const std::function<void(double)>& on_progress);
  int stop_signal() const { return stop_signal_; }

 private:
  struct Extent {
    int64_t micro_batches = 0;
    int64_t per_rank = 0;  ///< micro-batches of each data rank, the last possibly empty
  };
  Extent extent(const ValidationSet& set) const;
  /// This data rank's micro-batch i. After the last one a batch without targets: expert ranks need the
  /// same number of forward passes.
  MicroBatch read(const ValidationSet& set, const Extent& extent, int64_t i) const;
  /// Adds the sums of the cross-entropies of micro-batches [begin, end) to `sum`.
  void add_losses(const ValidationSet& set, const Extent& extent, int64_t begin, int64_t end,
                  const at::Tensor& sum);
  bool stopped();

  const Transformer& model_;
  const std::deque<ValidationSet>& sets_;
  const World* world_;
  std::unique_ptr<Pipeline> pipeline_;
  int stop_signal_ = 0;
};

}  // namespace hero
