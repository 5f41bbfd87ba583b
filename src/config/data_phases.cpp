#include "config/data_phases.h"

#include <algorithm>

#include "config/fields.h"
#include "io/error.h"

namespace hero {
namespace {

// As other integers: a product of two fits in 64 bits, and every JSON reader represents the tokens exactly.
constexpr int64_t kMaxStep = 2147483647, kMaxTokens = 9007199254740991;

std::string phase_name(int64_t number) { return "data.phase: phase " + std::to_string(number) + ": "; }

// "until_step = 800", or nothing without a bound.
std::string bound_text(const DataPhase& phase) {
  if (phase.until_step > 0) return format_option("until_step", phase.until_step);
  return phase.until_tokens > 0 ? format_option("until_tokens", phase.until_tokens) : "";
}

// With the step that a bound in tokens means.
std::string bound_with_step(const DataPhase& phase, int64_t end) {
  return bound_text(phase) + (phase.until_tokens > 0 ? " (step " + std::to_string(end) + ")" : "");
}

}  // namespace

std::vector<int64_t> phase_ends(const Config& config) {
  const int64_t step_tokens = config.train.global_batch * config.train.sequence;
  std::vector<int64_t> ends;
  for (const DataPhase& phase : config.data.phases) {
    const int64_t by_tokens = (phase.until_tokens + step_tokens - 1) / step_tokens;
    const int64_t end = phase.until_step > 0 ? phase.until_step : by_tokens;
    ends.push_back(end > 0 ? end : kNoPhaseEnd);
  }
  return ends;
}

std::optional<int64_t> phase_of_step(const Config& config, int64_t step) {
  const auto ends = phase_ends(config);
  const auto found = std::ranges::lower_bound(ends, step);
  return found == ends.end() ? std::nullopt : std::optional(found - ends.begin() + 1);
}

std::string describe_phase(const Config& config, int64_t number) {
  const auto ends = phase_ends(config);
  const size_t i = number - 1;
  const int64_t first = i == 0 ? 1 : ends[i - 1] + 1;
  std::string text = "data phase " + std::to_string(number) + " of " + std::to_string(ends.size()) +
                     ", steps " + std::to_string(first) +
                     (ends[i] == kNoPhaseEnd ? " and later" : " to " + std::to_string(ends[i])) + ":";
  for (const std::string& source : config.data.phases[i].blend) text += " " + source;
  return text;
}

void check_data_phases(const Config& config) {
  const auto& phases = config.data.phases;
  const auto ends = phase_ends(config);
  for (size_t i = 0; i + 1 < phases.size(); ++i) {
    const auto number = static_cast<int64_t>(i) + 1;
    if (ends[i] == kNoPhaseEnd) {
      throw UserError(phase_name(number) +
                      "found no bound, expected until_step or until_tokens: only the last phase has none");
    }
    if (ends[i + 1] <= ends[i]) {
      throw UserError(phase_name(number + 1) + "found " + bound_with_step(phases[i + 1], ends[i + 1]) +
                      ", expected a later step than that of phase " + std::to_string(number) + ", " +
                      bound_with_step(phases[i], ends[i]));
    }
  }
  if (ends.empty() || ends.back() >= config.train.steps) return;
  throw UserError(phase_name(std::ssize(phases)) + "found " + bound_with_step(phases.back(), ends.back()) +
                  ", expected no bound, or at least " + format_option("train.steps", config.train.steps) +
                  ", in the last phase");
}

std::vector<std::string> phases_without_effect(const Config& config) {
  std::vector<std::string> lines;
  const auto ends = phase_ends(config);
  for (size_t i = 1; i < ends.size(); ++i) {
    if (ends[i - 1] < config.train.steps) continue;
    lines.push_back("data.phase: phase " + std::to_string(i + 1) + " has no effect: it begins after step " +
                    std::to_string(ends[i - 1]) + ", and the run has " +
                    format_option("train.steps", config.train.steps));
  }
  return lines;
}

std::string phases_literal(const std::vector<DataPhase>& phases) {
  std::string text;
  for (const DataPhase& phase : phases) {
    const std::string bound = bound_text(phase);
    text += (text.empty() ? "{" : ", {") + bound + (bound.empty() ? "" : ", ") +
            "blend = " + literal(phase.blend) + "}";
  }
  return "[" + text + "]";
}

bool are_valid_phases(const std::vector<DataPhase>& phases) {
  return std::ranges::all_of(phases, [](const DataPhase& phase) {
    const bool within = phase.until_step >= 0 && phase.until_step <= kMaxStep && phase.until_tokens >= 0 &&
                        phase.until_tokens <= kMaxTokens;
    if (!within || (phase.until_step > 0 && phase.until_tokens > 0)) return false;
    std::vector<std::string> blend;  // has the texts that a list of strings may have
    return assign({.value = &blend}, phase.blend) && !blend.empty();
  });
}

}  // namespace hero
