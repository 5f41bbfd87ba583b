// The phases of a run's data. Within a phase, sources are chosen as in a blend of its own, with counts from
// zero; the samples of a source continue where an earlier phase stopped reading it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/blend.h"

namespace hero {

/// The blend of a phase.
struct PhaseBlend {
  int64_t begin = 0;             ///< its first sample in the global order
  std::vector<int64_t> sources;  ///< indices of DataPlan::prefixes, in the order of the blend
  std::vector<double> weights;
};

/// What a run reads: the sources of all phases, in order of their first use, and the phases.
struct DataPlan {
  std::vector<std::string> prefixes;  ///< resolved: of the training split
  std::vector<PhaseBlend> phases;     ///< at least one, the first one from sample 0 on
};

/// One phase with these sources. A source that is given twice counts as two.
DataPlan single_phase(const std::vector<DataSource>& sources);

/// The phases of data.phase, or a single one of the --data arguments, exactly one of which must be given.
/// Sources of several phases are the same if their resolved prefixes are. UserError naming the phase for an
/// invalid blend or bound.
DataPlan make_data_plan(const Config& config, const std::vector<std::string>& data);

/// The number of sources, the first ones of the plan, that the first `samples` samples come from.
int64_t sources_before(const DataPlan& plan, int64_t samples);

/// Where the order of the first `samples` samples of `found` differs from that of `expected`, as "found ...,
/// expected ..." with steps of `global_batch` samples; nullopt if it is the same.
std::optional<std::string> earlier_difference(const DataPlan& found, const DataPlan& expected,
                                              int64_t samples, int64_t global_batch);

/// Maps a position in the global order to a source of the plan and the sample index within it.
class PhasedSampler {
 public:
  explicit PhasedSampler(const DataPlan& plan);

  /// Moving forward costs a few integer operations per position; moving back restarts at 0. Reads no data.
  BlendedSampler::Choice at(int64_t position);

  /// The number of samples of each source before a position, at the same cost.
  std::vector<int64_t> counts(int64_t position);

 private:
  /// Selects the phase of the position.
  void seek(int64_t position);
  int64_t phase_begin() const { return phases_[current_].begin; }

  std::vector<PhaseBlend> phases_;
  std::vector<int64_t> earlier_;  // by source: samples of earlier phases
  std::size_t current_ = 0;
  BlendedSampler blend_;  // of the current phase
};

}  // namespace hero
