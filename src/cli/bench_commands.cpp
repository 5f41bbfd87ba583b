#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/config_option.h"
#include "config/fields.h"
#include "config/warnings.h"
#include "ops/gemm_throughput.h"
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

// Options of documents and data, which random tokens do not have: warns and resets them.
void drop_document_options(Config& config) {
  TrainConfig& t = config.train;
  const std::string why = " has no effect: hero bench trains on all of its random tokens";
  if (t.loss_mask) warn({format_option("train.loss_mask", t.loss_mask) + why});
  if (t.pack != Packing::kConcat) warn({format_option("train.pack", name_of(t.pack)) + why});
  if (!config.data.phases.empty()) warn({format_option("data.phase", config.data.phases) + why});
  config.data.phases.clear();
  t.loss_mask = false;
  t.pack = Packing::kConcat;
}

Config load(const BenchOptions& options, const std::vector<std::string>& flags) {
  Config config = load_config(options.configs, flags);
  drop_document_options(config);
  if (options.train_steps > 0) config.train.steps = options.train_steps;
  OptimConfig& o = config.optim;
  o.warmup_steps = std::min(o.warmup_steps, config.train.steps);
  if (o.schedule == LrSchedule::kWsd)
    o.decay_steps = std::min(o.decay_steps, config.train.steps - o.warmup_steps);
  return options.layers > 0 ? first_layers(config, options.layers) : config;
}

std::shared_ptr<BenchOptions> add_options(Command* command) {
  auto options = std::make_shared<BenchOptions>();
  add_config_option(*command, options->configs);
  command->add_option("--steps", options->table.steps.steps, "timed optimizer steps per process")
      .range(1, 1'000'000)
      .show_default();
  command->add_option("--warmup", options->table.steps.warmup, "untimed warm-up steps")
      .range(0, 1'000'000)
      .show_default();
  command->add_flag(
      "--forward", options->table.steps.forward,
      "forward passes of one micro-batch only: no gradients, no optimizer, so larger models fit");
  command->allow_extras();
  command->footer("Configuration keys are given as --key=value; hero train --help lists them.");
  return options;
}

void print_gemm_kernels(bool as_json) {
  nlohmann::ordered_json used, rates;
  for (const auto& kernel : gemm_kernel_throughputs()) {
    if (kernel.used) used = kernel.name;
    rates[kernel.name] = kernel.flops_per_second;
    if (as_json) continue;
    std::printf("%-12s %8.1f GFLOP/s%s\n", kernel.name.c_str(), kernel.flops_per_second / 1e9,
                kernel.used ? "  used" : "");
  }
  if (as_json)
    std::printf("%s\n", nlohmann::ordered_json{{"used", used}, {"flops_per_second", rates}}.dump(1).c_str());
}

}  // namespace

void add_bench_commands(Command& hero) {
  auto* bench = hero.subcommand("bench");
  bench->require_subcommand();

  auto* table = bench->add_subcommand(
      "cost-table",
      "Memory, operations and step times of the baseline and of HERO, measured alternately on random tokens "
      "in separate processes on train.device; router times come from additional profiled steps");
  auto options = add_options(table);
  table->add_option("--rounds", options->table.rounds, "rounds, each measuring the baseline, then HERO")
      .range(1, 1'000'000)
      .show_default();
  table
      ->add_option("--layers", options->layers,
                   "use the first N layers, with stages scaled proportionally; 0: all")
      .range(0, 1 << 20)
      .show_default();
  table
      ->add_option("--train-steps", options->train_steps,
                   "steps of the training run whose total time is estimated; 0: train.steps")
      .range(int64_t{0}, int64_t{1} << 40)
      .show_default();
  table->add_flag("--json", options->table.as_json, "print the values of all rounds as JSON");
  table->callback([options, table] { run_cost_table(load(*options, table->remaining()), options->table); });

  auto* step = bench->add_subcommand(
      "step", "Measure one model's steps in this process and print JSON lines; used by cost-table");
  auto step_options = add_options(step);
  step->callback([step_options, step] {
    const Config config = load(*step_options, step->remaining());
    check(config);
    check_vocabulary(config);
    write_steps(config, step_options->table.steps);
  });

  auto* gemm = bench->add_subcommand(
      "gemm",
      "Throughput of the bf16 GEMM kernels that this CPU supports, on all cores. Training, evaluation and "
      "generation use the first one, or the one that the environment variable HERO_GEMM names");
  auto json = std::make_shared<bool>(false);
  gemm->add_flag("--json", *json, "print JSON, in FLOP/s");
  gemm->callback([json] { print_gemm_kernels(*json); });
}

}  // namespace hero
