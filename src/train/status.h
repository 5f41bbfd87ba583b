#pragma once
// What the progress line of a run shows about its last step.
#include <optional>
#include <string>

#include "train/run_log.h"

namespace hero {

/// "loss 5.4321", with a validation loss "loss 5.4321  valid 5.5012".
std::string status_note(const StepRecord& step, std::optional<double> validation_loss = std::nullopt);

/// The share of all tokens that the busiest expert of any layer receives: "expert 12%". Shown last, because
/// it matters least when a line is too narrow.
std::string status_detail(const StepRecord& step);

}  // namespace hero
