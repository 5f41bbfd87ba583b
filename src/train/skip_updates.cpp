#include "train/skip_updates.h"

#include <cmath>
#include <numeric>
#include <vector>

namespace hero {
namespace {

constexpr size_t kWindow = 128, kMinimum = kWindow / 2;

bool exceeds(const std::vector<double>& window, double value, double deviations) {
  if (window.size() < kMinimum) return false;
  const auto count = static_cast<double>(window.size());
  const double mean = std::accumulate(window.begin(), window.end(), 0.0) / count;
  const double squares = std::accumulate(window.begin(), window.end(), 0.0,
                                         [&](double sum, double x) { return sum + (x - mean) * (x - mean); });
  return value > mean + deviations * std::sqrt(squares / (count - 1));
}

void append(std::vector<double>& window, double value) {
  if (window.size() == kWindow) window.erase(window.begin());
  window.push_back(value);
}

}  // namespace

bool skips_update(const TrainConfig& config, SkipState& state, double loss, double gradient_norm) {
  bool skips = false;
  if (!std::isfinite(loss) || !std::isfinite(gradient_norm)) {
    skips = state.nonfinite_in_a_row < config.skip_nonfinite;
    if (skips) ++state.nonfinite_in_a_row;
  } else {
    state.nonfinite_in_a_row = 0;
    if (config.spike_skip > 0) {
      skips = exceeds(state.losses, loss, config.spike_skip) ||
              exceeds(state.gradient_norms, gradient_norm, config.spike_skip);
      append(state.losses, loss);
      append(state.gradient_norms, gradient_norm);
    }
  }
  if (skips) ++state.skipped;
  return skips;
}

}  // namespace hero
