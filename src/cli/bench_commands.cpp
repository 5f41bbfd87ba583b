#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/config_option.h"
#include "perf/cost_table.h"
#include "perf/memory.h"
#include "perf/step_benchmark_process.h"

namespace hero {
namespace {

struct BenchOptions {
  std::vector<std::string> configs;
  CostTableOptions table;
  int64_t layers = 0, train_steps = 0;
};

Config load(const BenchOptions& options, const std::vector<std::string>& flags) {
  Config config = load_config(options.configs, flags);
  if (options.train_steps > 0) config.train.steps = options.train_steps;
  config.optim.warmup_steps = std::min(config.optim.warmup_steps, config.train.steps);
  return options.layers > 0 ? first_layers(config, options.layers) : config;
}

std::shared_ptr<BenchOptions> add_options(CLI::App* command) {
  auto options = std::make_shared<BenchOptions>();
  add_config_option(*command, options->configs);
  command->add_option("--steps", options->table.steps.steps, "timed optimizer steps of a process")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--warmup", options->table.steps.warmup, "steps before them")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  command->add_flag(
      "--forward", options->table.steps.forward,
      "forward passes of a micro-batch alone: no gradients, no optimizer, so that a larger model fits");
  command->allow_extras();
  command->footer("Configuration keys are given as --key=value; hero train --help lists them.");
  return options;
}

}  // namespace

void add_bench_commands(CLI::App& hero) {
  auto* bench = hero.add_subcommand("bench", "What training costs on this machine, measured");
  bench->require_subcommand(1);

  auto* table = bench->add_subcommand(
      "cost-table",
      "Memory, operations and times of a baseline and of HERO, measured in turn on random tokens, each in "
      "processes of its own, on train.device; half as many further steps, which nothing else is read from, "
      "time the routers");
  auto options = add_options(table);
  table->add_option("--rounds", options->table.rounds, "times that both are measured, in turn")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  table
      ->add_option("--layers", options->layers,
                   "measure the model's first so many layers, its stages in proportion; 0: all")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  table
      ->add_option("--train-steps", options->train_steps,
                   "steps of the training run whose time is given; 0: train.steps")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  table->add_flag("--json", options->table.as_json, "every round's values as JSON");
  table->callback([options, table] { run_cost_table(load(*options, table->remaining()), options->table); });

  auto* step = bench->add_subcommand(
      "step", "One model's steps in this process, as JSON lines: what cost-table runs for each side");
  auto step_options = add_options(step);
  step->callback([step_options, step] {
    const Config config = load(*step_options, step->remaining());
    check(config);
    check_vocabulary(config);
    write_steps(config, step_options->table.steps);
  });
}

}  // namespace hero
