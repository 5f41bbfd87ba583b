#include "train/data_usage.h"

#include <algorithm>
#include <numeric>

#include "checkpoint/state_file.h"
#include "data/sampler.h"
#include "hf/resolve.h"
#include "io/error.h"
#include "io/file_io.h"
#include "io/json_node.h"
#include "train/metrics.h"
#include "train/run_starts.h"

namespace hero {
namespace {

namespace fs = std::filesystem;

int64_t completed_steps(const fs::path& run) {
  const auto checkpoints = list_checkpoints(run);
  const int64_t saved =
      checkpoints.empty() ? 0 : checkpoint_step(checkpoints.back().filename().string()).value_or(0);
  const fs::path metrics = run / "metrics.jsonl";
  if (!fs::exists(metrics)) return saved;
  const auto line = last_logged_line(metrics);
  if (line.is_null()) return saved;
  const std::string name = metrics.string();
  return std::max(saved, JsonNode(line, name).at("step").integer(0, INT64_MAX));
}

}  // namespace

std::vector<std::string> recorded_data(const fs::path& run) {
  if (const auto checkpoints = list_checkpoints(run); !checkpoints.empty()) {
    const std::string state = (checkpoints.back() / "state.json").string();
    return parse_state(read_file(state), state).data;
  }
  const fs::path starts = run / kStartsFile;
  if (!fs::exists(starts)) {
    throw UserError(starts.string() +
                    ": not found, expected it or a checkpoint, which record the run's --data");
  }
  const auto line = last_logged_line(starts);
  const std::string name = starts.string();
  std::vector<std::string> data;
  for (const JsonNode& argument : JsonNode(line, name).at("data").items()) data.push_back(argument.text());
  return data;
}

DataUsage count_data_usage(const Config& config, const std::vector<std::string>& data, int64_t completed) {
  const TrainConfig& t = config.train;
  const DataPlan plan = make_data_plan(config, data);
  const auto files = first_token_files(plan.prefixes);
  const TokenStream stream(plan, t.sequence, static_cast<uint64_t>(t.seed), config.model.vocab_size,
                           files ? files->eos_id : -1, {t.pack, t.loss_mask});
  const auto epochs = stream.epoch_samples();
  const int64_t read = completed * t.global_batch, planned = t.steps * t.global_batch;
  DataUsage usage{.completed = completed,
                  .steps = t.steps,
                  .sequence = t.sequence,
                  .global_batch = t.global_batch,
                  .phases = {},
                  .total = {}};
  for (size_t k = 0; k < plan.prefixes.size(); ++k)
    usage.total.push_back({.prefix = plan.prefixes[k], .epoch_samples = epochs[k]});
  PhasedSampler sampler(plan);
  for (size_t p = 0; p < plan.phases.size() && plan.phases[p].begin < planned; ++p) {
    const PhaseBlend& phase = plan.phases[p];
    const int64_t end = p + 1 < plan.phases.size() ? std::min(plan.phases[p + 1].begin, planned) : planned;
    PhaseUsage& added = usage.phases.emplace_back();
    added.first_step = phase.begin / t.global_batch + 1;
    added.last_step = end / t.global_batch;
    const auto at_begin = sampler.counts(phase.begin);
    const auto at_read = sampler.counts(std::clamp(read, phase.begin, end)), at_end = sampler.counts(end);
    const double sum = std::accumulate(phase.weights.begin(), phase.weights.end(), 0.0);
    for (size_t k = 0; k < phase.sources.size(); ++k) {
      const int64_t source = phase.sources[k];
      const SourceUsage& own = added.sources.emplace_back(
          SourceUsage{plan.prefixes[source], phase.weights[k] / sum, epochs[source],
                      at_read[source] - at_begin[source], at_end[source] - at_begin[source]});
      usage.total[source].read += own.read;
      usage.total[source].planned += own.planned;
    }
  }
  for (SourceUsage& source : usage.total)
    source.share = static_cast<double>(source.planned) / static_cast<double>(planned);
  return usage;
}

DataUsage count_data_usage(const fs::path& run) {
  const fs::path file = run / "config.toml";
  if (!fs::exists(file))
    throw UserError(run.string() + ": found no config.toml, expected the folder of a run");
  const Config config = load_config({file.string()}, {});
  check(config);
  const auto data = config.data.phases.empty() ? recorded_data(run) : std::vector<std::string>();
  return count_data_usage(config, data, std::min(completed_steps(run), config.train.steps));
}

}  // namespace hero
