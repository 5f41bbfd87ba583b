#include "train/run_data.h"

#include <filesystem>
#include <span>

#include "config/data_phases.h"
#include "io/error.h"
#include "train/data_usage.h"
#include "train/run_config.h"
#include "train/run_starts.h"

namespace hero {
namespace {

// Samples of the completed steps.
int64_t completed_samples(const Run& run) { return (first_step(run) - 1) * run.config.train.global_batch; }

void check_completed_phases(const DataPlan& found, const DataPlan& expected, const Run& run) {
  const auto difference =
      earlier_difference(found, expected, completed_samples(run), run.config.train.global_batch);
  if (!difference) return;
  throw UserError("data.phase: " + *difference + ", as in " + run.checkpoint.string() +
                  ": the data of completed steps may not change");
}

bool is_same_plan(const DataPlan& a, const DataPlan& b) {
  return !earlier_difference(a, b, /*samples=*/kNoPhaseEnd, /*global_batch=*/1);
}

}  // namespace

RunData find_run_data(const TrainOptions& options, Run& run) {
  const Config& config = run.config;
  auto& data = run.inputs.data;
  if (run.checkpoint.empty()) {
    data = options.data;
    // A run that ended before its first checkpoint starts again.
    const bool starts_again = options.resume && std::filesystem::exists(options.run / kStartsFile);
    if (data.empty() && config.data.phases.empty() && starts_again) data = recorded_data(options.run);
    if (data.empty() && config.data.phases.empty()) {
      throw UserError(
          "--data: none given, expected PREFIX of .bin and .idx files (hero data tokenize writes them)");
    }
    return {make_data_plan(config, data)};
  }
  const Config own = load_config({(run.checkpoint / "config.toml").string()}, {});
  if (config.data.phases.empty()) {
    if (!own.data.phases.empty()) {
      throw UserError("data.phase: found [], expected the phases of " + run.checkpoint.string() +
                      ": the data of completed steps may not change");
    }
    if (!options.data.empty() && options.data != data) {
      throw UserError("--data: found " + comma_separated(options.data) + ", expected " +
                      comma_separated(data) + ", as when the run was started");
    }
    return {make_data_plan(config, data)};
  }
  const DataPlan plan = make_data_plan(config, options.data), before = make_data_plan(own, data);
  check_completed_phases(plan, before, run);
  data.clear();
  return {plan, !is_same_plan(plan, before)};
}

void check_token_files(const TrainOptions& options, const RunData& data, Run& run) {
  const std::span<const std::string> prefixes = data.plan.prefixes;
  const bool masks = run.config.train.loss_mask;
  // Other later phases may add and remove files, but not replace one that the checkpoint knows.
  const auto kept =
      data.changed ? static_cast<size_t>(sources_before(data.plan, completed_samples(run))) : prefixes.size();
  TokenFileDigests digests = digest_token_files(prefixes.first(kept), masks);
  TokenFileDigests later = digest_token_files(prefixes.subspan(kept), masks);
  TokenFileDigests found = digests, expected = run.inputs.token_files;
  for (const auto& entry : later) {
    if (expected.contains(entry.first)) found.insert(entry);
  }
  digests.merge(later);
  if (data.changed)
    std::erase_if(expected, [&](const auto& entry) { return !digests.contains(entry.first); });
  run.changed_data = changed_token_files(found, expected);
  run.inputs.token_files = std::move(digests);
  if (run.changed_data.empty() || options.data_changed) return;
  throw UserError(run.changed_data.begin()->second + " as in " + (run.checkpoint / "state.json").string() +
                  "; restore the file, or pass --data-changed to continue with the new data");
}

void check_validation_files(Run& run) {
  if (run.validation.empty()) return;  // what the checkpoint recorded stays
  TokenFileDigests digests, found;
  for (const auto& set : run.validation)
    digests.merge(digest_token_files(std::span(&set.reader.prefix(), 1), run.config.train.loss_mask));
  TokenFileDigests& expected = run.inputs.validation_files;
  std::erase_if(expected, [&](const auto& entry) { return !digests.contains(entry.first); });
  for (const auto& [path, digest] : expected) found[path] = digests.at(path);
  run.changed_validation = changed_token_files(found, expected);
  expected = std::move(digests);
}

}  // namespace hero
