#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/config_option.h"
#include "io/error.h"
#include "io/step_progress.h"
#include "train/data_usage.h"

namespace hero {
namespace {

using nlohmann::ordered_json;

struct DataShowOptions {
  std::string run;
  std::vector<std::string> configs, data;
  bool as_json = false;
};

DataUsage find_usage(const DataShowOptions& options, const std::vector<std::string>& flags) {
  const bool configured = !options.configs.empty() || !options.data.empty() || !flags.empty();
  if (!options.run.empty()) {
    if (configured)
      throw UserError("RUN: found " + options.run + " and options, expected one of them: a run has its own");
    return count_data_usage(options.run);
  }
  if (!configured) throw UserError("RUN: found nothing, expected a run, or --config and --data");
  const Config config = load_config(options.configs, flags);
  check(config);
  return count_data_usage(config, options.data, /*completed=*/0);
}

double epochs(const SourceUsage& source, int64_t samples) {
  return static_cast<double>(samples) / static_cast<double>(source.epoch_samples);
}

struct UsageRow {
  std::string phase, steps;
  SourceUsage source;
};

std::vector<UsageRow> usage_rows(const DataUsage& usage) {
  std::vector<UsageRow> rows;
  for (size_t p = 0; p < usage.phases.size(); ++p) {
    const PhaseUsage& phase = usage.phases[p];
    const auto steps = format_with_commas(phase.first_step) + " to " + format_with_commas(phase.last_step);
    for (const auto& source : phase.sources) rows.push_back({std::to_string(p + 1), steps, source});
  }
  if (usage.phases.size() > 1) {
    for (const auto& source : usage.total) rows.push_back({"all", "", source});
  }
  return rows;
}

// At least as wide as the number or the title.
int column_width(int64_t largest, const std::string& title) {
  return static_cast<int>(std::max(title.size(), format_with_commas(largest).size()));
}

void print_usage(const DataUsage& usage) {
  const int64_t step_tokens = usage.global_batch * usage.sequence;
  std::printf("%s of %s steps, %s of %s tokens\n", format_with_commas(usage.completed).c_str(),
              format_with_commas(usage.steps).c_str(),
              format_with_commas(usage.completed * step_tokens).c_str(),
              format_with_commas(usage.steps * step_tokens).c_str());
  size_t widest = 6, steps = 5;
  const auto rows = usage_rows(usage);
  for (const UsageRow& row : rows) {
    widest = std::max(widest, row.source.prefix.size());
    steps = std::max(steps, row.steps.size());
  }
  const int name = static_cast<int>(widest), range = static_cast<int>(steps);
  const int samples_width = column_width(usage.steps * usage.global_batch, "samples");
  const int tokens_width = column_width(usage.steps * step_tokens, "tokens");
  const int group = samples_width + tokens_width + 12;  // and epochs
  const std::string after = "after step " + format_with_commas(usage.steps);
  std::printf("%*s  %*s  %*s\n", range + name + 17, "", group, "read so far", group, after.c_str());
  std::printf("phase  %-*s  %-*s   share", range, "steps", name, "source");
  for (int i = 0; i < 2; ++i)
    std::printf("  %*s  %*s  %8s", samples_width, "samples", tokens_width, "tokens", "epochs");
  std::printf("\n");
  for (const UsageRow& row : rows) {
    const SourceUsage& s = row.source;
    std::printf("%-5s  %-*s  %-*s  %5.1f%%", row.phase.c_str(), range, row.steps.c_str(), name,
                s.prefix.c_str(), 100 * s.share);
    for (const int64_t samples : {s.read, s.planned}) {
      std::printf("  %*s  %*s  %8.2f", samples_width, format_with_commas(samples).c_str(), tokens_width,
                  format_with_commas(samples * usage.sequence).c_str(), epochs(s, samples));
    }
    std::printf("\n");
  }
}

ordered_json usage_sources_json(const std::vector<SourceUsage>& sources, int64_t sequence) {
  auto list = ordered_json::array();
  for (const SourceUsage& s : sources) {
    const auto counts = [&](int64_t samples) -> ordered_json {
      return {{"samples", samples}, {"tokens", samples * sequence}, {"epochs", epochs(s, samples)}};
    };
    list.push_back({{"prefix", s.prefix},
                    {"share", s.share},
                    {"samples_per_epoch", s.epoch_samples},
                    {"read", counts(s.read)},
                    {"planned", counts(s.planned)}});
  }
  return list;
}

void print_usage_json(const DataUsage& usage) {
  auto phases = ordered_json::array();
  for (const PhaseUsage& phase : usage.phases) {
    phases.push_back({{"first_step", phase.first_step},
                      {"last_step", phase.last_step},
                      {"sources", usage_sources_json(phase.sources, usage.sequence)}});
  }
  const ordered_json out = {{"completed_steps", usage.completed},
                            {"steps", usage.steps},
                            {"tokens_per_step", usage.global_batch * usage.sequence},
                            {"phases", phases},
                            {"sources", usage_sources_json(usage.total, usage.sequence)}};
  std::printf("%s\n", out.dump(1).c_str());
}

}  // namespace

void add_data_show_command(Command& data) {
  auto options = std::make_shared<DataShowOptions>();
  auto* command = data.add_subcommand(
      "show", "Count what a run has read and will read of each source, by phase: samples, tokens, epochs");
  command->add_option("RUN", options->run, "run folder");
  add_config_option(*command, options->configs);
  command->add_option("--data", options->data,
                      "PREFIX of .bin and .idx files, or several as WEIGHT:PREFIX, of a run that is not yet "
                      "started");
  command->add_flag("--json", options->as_json, "print all values as JSON");
  command->allow_extras();
  command->footer(
      "An epoch is every sample of the source once. Without RUN, configuration keys are given as "
      "--key=value; "
      "hero train --help lists them.");
  command->callback([options, command] {
    const DataUsage usage = find_usage(*options, command->remaining());
    options->as_json ? print_usage_json(usage) : print_usage(usage);
  });
}

}  // namespace hero
