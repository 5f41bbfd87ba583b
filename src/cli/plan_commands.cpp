#include <algorithm>
#include <cstdio>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/config_option.h"
#include "config/find.h"
#include "io/durable_file.h"
#include "io/error.h"
#include "io/step_progress.h"
#include "perf/layouts.h"
#include "perf/plan_report.h"
#include "perf/schedule_drawing.h"

namespace hero {
namespace {

struct PlanOptions {
  std::vector<std::string> configs;
  std::string cluster, draw;
  std::map<std::string, FieldValue> given;  // fields of the cluster
  int64_t top = 10;
  int64_t draw_layout = 0;  // number in the table; 0: the fastest with a pipeline
  bool own_layout = false;
  double hours = 0, hero_hours = 0, tokens = 0;
  bool as_json = false;
};

Hours hours_of(const PlanOptions& options, const Config& config) {
  const auto step = static_cast<double>(config.train.global_batch * config.train.sequence);
  const double steps = options.tokens > 0 ? options.tokens / step : static_cast<double>(config.train.steps);
  return {options.hours, options.hero_hours, steps};
}

Report configured_report(const PlanOptions& options, const Config& config, Cluster cluster) {
  const Config configured = configured_layout(config, cluster);
  Report report;
  if (options.hours > 0) {
    report.hours = hours_of(options, config);
    cluster.efficiency =
        fit_efficiency(as_baseline(configured), cluster, 3600 * options.hours / report.hours->steps);
  }
  report.layouts = {compare(configured, cluster)};
  report.cluster = cluster;
  return report;
}

Report search_report(const PlanOptions& options, const Config& config, const Cluster& cluster) {
  const auto all = layouts(config, cluster);
  if (all.empty()) {
    throw UserError("train.global_batch: found " + std::to_string(config.train.global_batch) +
                    ", expected a multiple of the data parallel size of a layout on " +
                    std::to_string(cluster.gpus) + " GPUs");
  }
  StepProgress progress("layout", static_cast<int64_t>(all.size()));
  const auto found =
      search(all, cluster, static_cast<size_t>(options.top), [&](int64_t done) { progress.update(done); });
  if (found.fastest.empty()) {
    char text[160];
    std::snprintf(
        text, sizeof text,
        "memory_gib: found %g with %g reserved, expected at least %.1f plus reserved, the memory of the "
        "smallest of %ld layouts",
        cluster.memory_gib, cluster.reserved_gib, found.min_memory / (1 << 30), found.tried);
    throw UserError(text);
  }
  Report report{
      .cluster = cluster, .tried = found.tried, .fitting = found.fitting, .layouts = {}, .hours = {}};
  for (const Plan& plan : found.fastest) report.layouts.push_back(compare(plan.config, cluster));
  return report;
}

bool has_pipeline(const Comparison& layout) { return layout.config.parallel.pipeline > 1; }

// Number in the table of the layout that --draw draws. UserError if there is none or it has no pipeline.
int64_t drawn_layout(const PlanOptions& options, const Report& report) {
  const auto count = std::ssize(report.layouts);
  const int64_t number = options.draw_layout;
  if (number > count) {
    throw UserError("--draw-layout: found " + std::to_string(number) +
                    ", expected a number in the table of layouts, 1 to " + std::to_string(count));
  }
  const auto fastest = std::ranges::find_if(report.layouts, has_pipeline);
  if (fastest == report.layouts.end()) {
    throw UserError(report.tried > 0
                        ? "--draw: found one stage in each of the " + std::to_string(count) +
                              " fastest layouts, expected one with a pipeline, perhaps with a larger --top"
                        : "--draw: found parallel.pipeline = 1, expected at least 2");
  }
  const int64_t default_number = fastest - report.layouts.begin() + 1;
  if (number == 0) return default_number;
  if (!has_pipeline(report.layouts[number - 1])) {
    throw UserError("--draw-layout: found " + std::to_string(number) +
                    ", a layout without a pipeline, expected one with a pipeline, such as " +
                    std::to_string(default_number));
  }
  return number;
}

void draw(const std::string& path, const Report& report, int64_t number) {
  const Config& config = report.layouts[number - 1].config;
  const ParallelConfig& p = config.parallel;
  const auto schedule = schedule_of(config);
  const auto simulation = simulate(schedule, pipeline_costs(config, report.cluster));
  char text[160];
  std::snprintf(text, sizeof text, "%s, %ld stages, %ld micro-batches: %.4g s", name_of(p.schedule).c_str(),
                p.pipeline, micro_batches_of(config), simulation.seconds);
  const std::string title = report.tried > 0 ? "layout " + std::to_string(number) + ": " + text : text;
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
    throw UserError("--hero-hours: found no --hours, expected both");
  const Report report = options.own_layout || options.hours > 0 ? configured_report(options, config, cluster)
                                                                : search_report(options, config, cluster);
  if (!options.draw.empty()) draw(options.draw, report, drawn_layout(options, report));
  options.as_json ? print_report_json(report) : print_report(report);
}

// One flag per cluster field.
void add_cluster_flags(Command& command, PlanOptions& options) {
  static Cluster defaults;
  for (const Field& field : cluster_fields(defaults)) {
    std::visit(
        [&]<typename T>(const T& value) {
          if constexpr (!std::is_same_v<T, std::vector<DataPhase>>) {
            auto option = command.add_option<T>(
                cluster_flag(field.key), [&options, key = field.key](T found) { options.given[key] = found; },
                field.help);
            if (assign(field, value)) option.show_default(literal(value));
          }
        },
        read(field));
  }
}

}  // namespace

void add_plan_command(Command& hero) {
  auto options = std::make_shared<PlanOptions>();
  auto* command = hero.subcommand("plan");
  add_config_option(*command, options->configs);
  command->add_option("--cluster", options->cluster,
                      "TOML file or name in configs/clusters; the flags below override it");
  add_cluster_flags(*command, *options);
  command->add_option("--top", options->top, "number of layouts shown").range(1, 1000).show_default();
  command->add_flag("--own-layout", options->own_layout,
                    "evaluate only the configured parallel.*, train.micro_batch and train.recompute");
  const auto number_option = [&](const char* name, double* value, const char* help) {
    command->add_option(name, *value, help).range(0.0, 1e18).show_default();
  };
  number_option(
      "--hours", &options->hours,
      "measured hours of a baseline run with the configured layout, to fit --efficiency; 0: not given");
  number_option("--hero-hours", &options->hero_hours,
                "measured hours of the HERO run, shown next to the prediction; 0: not given");
  number_option("--tokens", &options->tokens, "tokens trained in those hours; 0: from train.steps");
  const auto draw_option = command->add_option(
      "--draw", options->draw, "SVG file to write, with the pipeline schedule of a layout (--draw-layout)");
  command
      ->add_option("--draw-layout", options->draw_layout,
                   "layout to draw: its number in the table; default: the fastest with a pipeline")
      .range(1, 1000)
      .needs(draw_option);
  command->add_flag("--json", options->as_json, "print all values as JSON, in seconds, bytes and fractions");
  command->allow_extras();
  command->footer("Configuration keys are given as --key=value; hero train --help lists them.");
  command->callback([options, command] { run_plan(*options, command->remaining()); });
}

}  // namespace hero
