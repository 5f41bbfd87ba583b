#include <CLI/CLI.hpp>
#include <cstdio>

#include "cli/commands.h"
#include "cli/config_option.h"
#include "config/find.h"
#include "io/durable_file.h"
#include "io/error.h"
#include "io/step_progress.h"
#include "perf/schedule_drawing.h"
#include "perf/tables.h"

namespace hero {
namespace {

struct PlanOptions {
  std::vector<std::string> configs;
  std::string cluster, draw;
  std::map<std::string, Scalar> given;  // fields of the cluster
  int64_t top = 10;
  bool own_layout = false;
  double hours = 0, hero_hours = 0, tokens = 0;
  bool as_json = false;
};

Hours hours_of(const PlanOptions& options, const Config& config) {
  const auto step = static_cast<double>(config.train.global_batch * config.train.sequence);
  const double steps = options.tokens > 0 ? options.tokens / step : static_cast<double>(config.train.steps);
  return {options.hours, options.hero_hours, steps};
}

Report own_report(const PlanOptions& options, const Config& config, Cluster cluster) {
  const Config own = own_layout(config, cluster);
  Report report;
  if (options.hours > 0) {
    report.hours = hours_of(options, config);
    cluster.efficiency =
        fitted_efficiency(as_baseline(own), cluster, 3600 * options.hours / report.hours->steps);
  }
  report.layouts = {compare(own, cluster)};
  report.cluster = cluster;
  return report;
}

Report searched_report(const PlanOptions& options, const Config& config, const Cluster& cluster) {
  const auto all = layouts(config, cluster);
  if (all.empty()) {
    throw UserError("train.global_batch: found " + std::to_string(config.train.global_batch) +
                    ", expected a multiple of the data ranks of some layout of " +
                    std::to_string(cluster.gpus) + " GPUs");
  }
  StepProgress progress("layout", static_cast<int64_t>(all.size()));
  const auto found =
      search(all, cluster, static_cast<size_t>(options.top), [&](int64_t done) { progress.update(done); });
  if (found.fastest.empty()) {
    char text[160];
    std::snprintf(
        text, sizeof text,
        "memory_gib: found %g with %g reserved, expected at least %.1f more than reserved, what the "
        "smallest of %ld layouts takes",
        cluster.memory_gib, cluster.reserved_gib, found.least_memory / (1 << 30), found.tried);
    throw UserError(text);
  }
  Report report{
      .cluster = cluster, .tried = found.tried, .fitting = found.fitting, .layouts = {}, .hours = {}};
  for (const Plan& plan : found.fastest) report.layouts.push_back(compare(plan.config, cluster));
  return report;
}

void draw_first(const std::string& path, const Report& report) {
  const Config& config = report.layouts.front().config;
  const ParallelConfig& p = config.parallel;
  const auto schedule = schedule_of(config);
  const auto simulation = simulate(schedule, pipeline_costs(config, report.cluster));
  char title[160];
  std::snprintf(title, sizeof title, "%s, %ld stages, %ld micro-batches: %.4g s", p.schedule.c_str(),
                p.pipeline, micro_batches_of(config), simulation.seconds);
  write_durable(path, schedule_svg(schedule, simulation, p.pipeline * p.chunks, title));
}

void run_plan(const PlanOptions& options, const std::vector<std::string>& flags) {
  const Config config = load_config(options.configs, flags);
  check(config);
  check_vocabulary(config);
  const std::string file =
      options.cluster.empty()
          ? ""
          : find_config("--cluster", options.cluster, {config_folder() / "clusters"}).string();
  const Cluster cluster = read_cluster(file, options.given);
  if (options.hours == 0 && options.hero_hours > 0)
    throw UserError("--hero-hours: found no --hours beside it, expected both");
  const Report report = options.own_layout || options.hours > 0 ? own_report(options, config, cluster)
                                                                : searched_report(options, config, cluster);
  if (!options.draw.empty()) draw_first(options.draw, report);
  options.as_json ? print_report_json(report) : print_report(report);
}

// One flag for each field of a cluster.
void add_cluster_flags(CLI::App& command, PlanOptions& options) {
  static Cluster defaults;
  for (const Field& field : cluster_fields(defaults)) {
    std::visit(
        [&]<typename T>(T* value) {
          auto* option = command.add_option_function<T>(
              cluster_flag(field.key), [&options, key = field.key](T found) { options.given[key] = found; },
              field.help);
          if (assign(field, *value)) option->default_str(literal(*value));
        },
        field.value);
  }
}

}  // namespace

void add_plan_command(CLI::App& hero) {
  auto options = std::make_shared<PlanOptions>();
  auto* command = hero.add_subcommand(
      "plan", "Layouts of a run on a cluster: predicted time, memory and traffic, the fastest first");
  add_config_option(*command, options->configs);
  command->add_option(
      "--cluster", options->cluster,
      "TOML file of a cluster, or the name of one in configs/clusters; the flags below override it");
  add_cluster_flags(*command, *options);
  command->add_option("--top", options->top, "layouts shown")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_flag("--own-layout", options->own_layout,
                    "only the configuration's parallel.*, train.micro_batch and train.recompute");
  const auto positive = [&](const char* name, double* value, const char* help) {
    command->add_option(name, *value, help)->check(CLI::Range(0.0, 1e18))->capture_default_str();
  };
  positive("--hours", &options->hours,
           "hours that a baseline took in the configuration's own layout: fits --efficiency; 0: not given");
  positive("--hero-hours", &options->hero_hours, "HERO's hours, shown beside the prediction; 0: not given");
  positive("--tokens", &options->tokens, "tokens of those hours; 0: those of train.steps");
  command->add_option("--draw", options->draw, "SVG file for the schedule of the first layout");
  command->add_flag("--json", options->as_json, "all numbers as JSON: seconds, bytes, shares");
  command->allow_extras();
  command->footer("Configuration keys are given as --key=value; hero train --help lists them.");
  command->callback([options, command] { run_plan(*options, command->remaining()); });
}

}  // namespace hero
