#include "data/blend.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>

#include "io/error.h"

namespace hero {
namespace {

// The number before the first ':'; nullopt if there is none.
std::optional<double> leading_weight(const std::string& argument) {
  const std::size_t colon = argument.find(':');
  if (colon == argument.npos) return std::nullopt;
  double weight = 0;
  const auto [end, error] = std::from_chars(argument.data(), argument.data() + colon, weight);
  if (error != std::errc() || end != argument.data() + colon) return std::nullopt;
  return weight;
}

}  // namespace

std::vector<DataSource> parse_sources(const std::vector<std::string>& arguments, const std::string& option) {
  std::vector<DataSource> sources;
  std::size_t weighted = 0;
  for (const auto& argument : arguments) {
    const auto weight = leading_weight(argument);
    weighted += weight.has_value();
    if (weight && !(*weight > 0 && std::isfinite(*weight))) {
      throw UserError(option + " " + argument + ": expected a weight above 0 before the ':'");
    }
    sources.push_back({weight ? argument.substr(argument.find(':') + 1) : argument, weight.value_or(1)});
    if (sources.back().prefix.empty())
      throw UserError(option + " \"" + argument + "\": expected PREFIX or WEIGHT:PREFIX");
  }
  if (sources.empty()) throw UserError(option + ": found nothing, expected PREFIX or WEIGHT:PREFIX");
  if (weighted != 0 && weighted != sources.size()) {
    throw UserError(option + ": " + std::to_string(weighted) + " of " + std::to_string(sources.size()) +
                    " sources have a weight, expected all (WEIGHT:PREFIX) or none");
  }
  const auto add = [](double sum, const DataSource& source) { return sum + source.weight; };
  if (!std::isfinite(std::accumulate(sources.begin(), sources.end(), 0.0, add)))
    throw UserError(option + ": found weights with an infinite sum, expected smaller ones");
  return sources;
}

std::vector<int64_t> blend_units(const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> units;
  for (const double weight : weights)
    units.push_back(std::max<int64_t>(1, std::llround(weight / sum * 0x1p32)));
  return units;
}

BlendedSampler::BlendedSampler(const std::vector<double>& weights)
    : units_(blend_units(weights)),
      counts_(weights.size()),
      total_(std::accumulate(units_.begin(), units_.end(), int64_t{0})) {}

BlendedSampler::Choice BlendedSampler::at(int64_t position) {
  seek(position);
  return next();
}

const std::vector<int64_t>& BlendedSampler::counts(int64_t position) {
  seek(position);
  return counts_;
}

void BlendedSampler::seek(int64_t position) {
  if (position < position_) {
    std::fill(counts_.begin(), counts_.end(), 0);
    position_ = 0;
  }
  while (position_ < position) next();
}

BlendedSampler::Choice BlendedSampler::next() {
  using Wide = __int128;
  ++position_;
  int64_t best = -1;
  for (std::size_t k = 0; k < units_.size(); ++k) {
    const bool below_quota = Wide(counts_[k]) * total_ < Wide(units_[k]) * position_;
    if (!below_quota) continue;
    if (best < 0 || Wide(counts_[k] + 1) * units_[best] < Wide(counts_[best] + 1) * units_[k])
      best = static_cast<int64_t>(k);
  }
  return {best, counts_[best]++};
}

}  // namespace hero
