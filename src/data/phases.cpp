#include "data/phases.h"

#include <algorithm>
#include <filesystem>

#include "config/data_phases.h"
#include "config/fields.h"
#include "data/indexed_dataset.h"
#include "io/error.h"

namespace hero {
namespace {

std::string identity(const std::string& prefix) {
  return std::filesystem::absolute(prefix).lexically_normal().string();
}

// Index of the source, which is added if it is new.
int64_t find_source(DataPlan& plan, const std::string& prefix) {
  const std::string resolved = resolve_prefix(prefix, "train");
  const auto same = [&](const std::string& known) { return identity(known) == identity(resolved); };
  const auto found = std::ranges::find_if(plan.prefixes, same);
  const int64_t index = found - plan.prefixes.begin();
  if (found == plan.prefixes.end()) plan.prefixes.push_back(resolved);
  return index;
}

// "0.7:data/a-train 0.3:data/b-train".
std::string blend_text(const DataPlan& plan, const PhaseBlend& phase) {
  std::string text;
  for (size_t k = 0; k < phase.sources.size(); ++k) {
    std::string weight = literal(phase.weights[k]);
    if (weight.ends_with(".0")) weight.resize(weight.size() - 2);
    text += (k == 0 ? "" : " ") + weight + ":" + plan.prefixes[phase.sources[k]];
  }
  return text;
}

bool is_same_blend(const DataPlan& a, const PhaseBlend& of_a, const DataPlan& b, const PhaseBlend& of_b) {
  if (blend_units(of_a.weights) != blend_units(of_b.weights) || of_a.sources != of_b.sources) return false;
  return std::ranges::all_of(of_a.sources,
                             [&](int64_t k) { return identity(a.prefixes[k]) == identity(b.prefixes[k]); });
}

}  // namespace

DataPlan single_phase(const std::vector<DataSource>& sources) {
  DataPlan plan{.prefixes = {}, .phases = {PhaseBlend()}};
  for (const DataSource& source : sources) {
    plan.phases[0].sources.push_back(std::ssize(plan.prefixes));
    plan.phases[0].weights.push_back(source.weight);
    plan.prefixes.push_back(resolve_prefix(source.prefix, "train"));
  }
  return plan;
}

DataPlan make_data_plan(const Config& config, const std::vector<std::string>& data) {
  const auto& phases = config.data.phases;
  if (phases.empty()) return single_phase(parse_sources(data));
  if (!data.empty()) {
    throw UserError("--data: found " + data.front() +
                    " together with data.phase, expected one of them: each phase has its own blend");
  }
  check_data_phases(config);
  const auto ends = phase_ends(config);
  DataPlan plan;
  for (size_t i = 0; i < phases.size(); ++i) {
    const std::string where = "data.phase: phase " + std::to_string(i + 1) + ": ";
    PhaseBlend phase{
        .begin = i == 0 ? 0 : ends[i - 1] * config.train.global_batch, .sources = {}, .weights = {}};
    for (const DataSource& source : parse_sources(phases[i].blend, where + "blend")) {
      const int64_t index = find_source(plan, source.prefix);
      if (std::ranges::count(phase.sources, index) > 0) {
        throw UserError(where + "blend: found " + source.prefix + " twice, expected each source once");
      }
      phase.sources.push_back(index);
      phase.weights.push_back(source.weight);
    }
    plan.phases.push_back(std::move(phase));
  }
  return plan;
}

int64_t sources_before(const DataPlan& plan, int64_t samples) {
  int64_t count = 0;
  for (const PhaseBlend& phase : plan.phases) {
    if (phase.begin < samples) count = std::max(count, std::ranges::max(phase.sources) + 1);
  }
  return count;
}

std::optional<std::string> earlier_difference(const DataPlan& found, const DataPlan& expected,
                                              int64_t samples, int64_t global_batch) {
  const auto text = [&](const DataPlan& plan, size_t i) {
    return i >= plan.phases.size() || plan.phases[i].begin >= samples
               ? "no phase " + std::to_string(i + 1) + " up to step " + std::to_string(samples / global_batch)
               : "phase " + std::to_string(i + 1) + " from step " +
                     std::to_string(plan.phases[i].begin / global_batch + 1) + " with " +
                     blend_text(plan, plan.phases[i]);
  };
  const auto has = [&](const DataPlan& plan, size_t i) {
    return i < plan.phases.size() && plan.phases[i].begin < samples;
  };
  for (size_t i = 0; has(found, i) || has(expected, i); ++i) {
    if (has(found, i) && has(expected, i) && found.phases[i].begin == expected.phases[i].begin &&
        is_same_blend(found, found.phases[i], expected, expected.phases[i]))
      continue;
    return "found " + text(found, i) + ", expected " + text(expected, i);
  }
  return std::nullopt;
}

PhasedSampler::PhasedSampler(const DataPlan& plan)
    : phases_(plan.phases), earlier_(plan.prefixes.size()), blend_(phases_.front().weights) {}

BlendedSampler::Choice PhasedSampler::at(int64_t position) {
  seek(position);
  const auto choice = blend_.at(position - phase_begin());
  const int64_t source = phases_[current_].sources[choice.source];
  return {source, earlier_[source] + choice.index};
}

std::vector<int64_t> PhasedSampler::counts(int64_t position) {
  seek(position);
  auto all = earlier_;
  const auto own = blend_.counts(position - phase_begin());
  for (size_t k = 0; k < own.size(); ++k) all[phases_[current_].sources[k]] += own[k];
  return all;
}

void PhasedSampler::seek(int64_t position) {
  if (position < phase_begin()) {
    current_ = 0;
    std::ranges::fill(earlier_, 0);
    blend_ = BlendedSampler(phases_[0].weights);
  }
  while (current_ + 1 < phases_.size() && position >= phases_[current_ + 1].begin) {
    const auto own = blend_.counts(phases_[current_ + 1].begin - phase_begin());
    for (size_t k = 0; k < own.size(); ++k) earlier_[phases_[current_].sources[k]] += own[k];
    blend_ = BlendedSampler(phases_[++current_].weights);
  }
}

}  // namespace hero
