#include "train/run_starts.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "config/data_phases.h"
#include "config/fields.h"
#include "config/warnings.h"
#include "hf/resolve.h"
#include "io/sha256.h"
#include "train/metrics.h"

namespace hero {

using nlohmann::ordered_json;

namespace {

ordered_json option_json(const Field& field) {
  return std::visit([](const auto& value) { return ordered_json(value); }, read(field));
}

// {KEY: {"from": value, "to": value}} of the options with different values.
ordered_json option_changes(Config before, Config after) {
  auto changes = ordered_json::object();
  const auto old_fields = fields(before), new_fields = fields(after);
  for (size_t i = 0; i < old_fields.size(); ++i) {
    if (read(old_fields[i]) != read(new_fields[i]))
      changes[old_fields[i].key] = {{"from", option_json(old_fields[i])}, {"to", option_json(new_fields[i])}};
  }
  return changes;
}

// The phases, with null as the bound of a last one without.
ordered_json phases_json(const Config& config) {
  auto list = ordered_json::array();
  const auto ends = phase_ends(config);
  for (size_t i = 0; i < ends.size(); ++i) {
    const auto end = ends[i] == kNoPhaseEnd ? ordered_json() : ordered_json(ends[i]);
    list.push_back({{"until_step", end}, {"blend", config.data.phases[i].blend}});
  }
  return list;
}

}  // namespace

int64_t first_step(const Run& run) {
  if (run.parent) return run.parent->step + 1;  // its folder may have any name
  return run.checkpoint.empty() ? 1 : checkpoint_step(run.checkpoint.filename().string()).value_or(0) + 1;
}

void record_start(const std::filesystem::path& folder, const Run& run) {
  const int64_t step = first_step(run) - 1;
  // Not config.toml of the run: it has the options of the last start, which may have trained other steps.
  const Config before =
      run.checkpoint.empty() ? run.config : load_config({(run.checkpoint / "config.toml").string()}, {});
  auto changed_data = ordered_json::array();
  for (const auto& [path, change] : run.changed_data) changed_data.push_back(path);
  const std::string tokenizer = run.inputs.tokenizer.empty() ? "" : sha256(run.inputs.tokenizer);
  ordered_json line = {{"step", step},
                       {"data", run.inputs.data},
                       {"token_files", digests_to_json(run.inputs.token_files)},
                       {"tokenizer_sha256", tokenizer},
                       {"options", option_changes(before, run.config)},
                       {"changed_data", changed_data}};
  for (const auto& [path, change] : run.changed_validation) line["changed_validation"].push_back(path);
  if (!run.config.data.phases.empty()) line["phases"] = phases_json(run.config);
  if (const auto& parent = run.parent) {
    line["parent"] = {{"checkpoint", parent->checkpoint.string()},
                      {"step", parent->step},
                      {"manifest_sha256", parent->manifest_sha256}};
  }
  MetricsLog(folder / kStartsFile).append(line);
  const auto report = [&](const std::string& change) {
    std::fprintf(stderr, "%s: from step %ld: %s\n", folder.c_str(), step + 1, change.c_str());
  };
  for (const std::string& change : differences(before, run.config)) report(change);
  for (const auto& [path, change] : run.changed_data) report(change + " (--data-changed)");
  for (const auto& [path, change] : run.changed_validation)
    warn({change + ": from step " + std::to_string(step + 1) +
          " on, valid_loss is that of other validation data"});
}

}  // namespace hero
