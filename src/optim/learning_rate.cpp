#include "optim/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace hero {
namespace {

// The steps after `begin` decay, `count` of them.
struct Decay {
  int64_t begin, count;
};

Decay decay_of(const OptimConfig& config, int64_t steps) {
  const int64_t left = std::max<int64_t>(steps - config.warmup_steps, 1);
  if (config.schedule != LrSchedule::kWsd)
    return {config.warmup_steps, config.decay_steps > 0 ? config.decay_steps : left};
  const int64_t count = config.decay_steps > 0 ? config.decay_steps : std::min((steps + 9) / 10, left);
  return {steps - count, count};
}

// The rate after a fraction `done` of a decay.
double decayed(const OptimConfig& config, DecayShape shape, double done) {
  const double range = config.lr - config.min_lr;
  switch (shape) {
    case DecayShape::kLinear:
      return config.min_lr + range * (1.0 - done);
    case DecayShape::kCosine:
      return config.min_lr + 0.5 * range * (1.0 + std::cos(std::numbers::pi * done));
    case DecayShape::k1Sqrt:
      return config.min_lr + range * (1.0 - std::sqrt(done));
  }
  return config.min_lr;
}

}  // namespace

double learning_rate(const OptimConfig& config, int64_t step, int64_t steps) {
  if (step <= config.warmup_steps)
    return config.lr * static_cast<double>(step) / static_cast<double>(config.warmup_steps);
  if (config.schedule == LrSchedule::kConstant) return config.lr;
  const Decay decay = decay_of(config, steps);
  if (step <= decay.begin) return config.lr;
  const double done =
      std::min(1.0, static_cast<double>(step - decay.begin) / static_cast<double>(decay.count));
  const DecayShape shape = config.schedule == LrSchedule::kWsd      ? config.decay_shape
                           : config.schedule == LrSchedule::kCosine ? DecayShape::kCosine
                                                                    : DecayShape::kLinear;
  return decayed(config, shape, done);
}

}  // namespace hero
