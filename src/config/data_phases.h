#pragma once
// The phases of data.phase: their text form, bounds in steps, and what check() and warnings say about them.
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"

namespace hero {

/// The end of a phase that lasts until the end of the run.
constexpr int64_t kNoPhaseEnd = std::numeric_limits<int64_t>::max();

/// The last step of each phase: `until_step`, or the first step that completes `until_tokens`; kNoPhaseEnd
/// without a bound. Empty without phases.
std::vector<int64_t> phase_ends(const Config& config);

/// Number of the phase of a step, from 1; nullopt without phases.
std::optional<int64_t> phase_of_step(const Config& config, int64_t step);

/// "data phase 2 of 3, steps 801 to 1000: 0.7:data/books 0.3:data/web".
std::string describe_phase(const Config& config, int64_t number);

/// UserError naming the phase: a bound that is missing or does not increase, a last phase that ends before
/// train.steps.
void check_data_phases(const Config& config);

/// Warnings about phases that begin after train.steps.
std::vector<std::string> phases_without_effect(const Config& config);

/// TOML literal of a list of phases, on one line.
std::string phases_literal(const std::vector<DataPhase>& phases);

/// Whether every phase has at most one bound, of an allowed size, and a blend.
bool are_valid_phases(const std::vector<DataPhase>& phases);

}  // namespace hero
