#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/config_option.h"
#include "config/router_kinds.h"
#include "io/error.h"
#include "model/counts.h"
#include "perf/memory.h"
#include "perf/process_memory.h"
#include "perf/stage_memory.h"
#include "perf/step_time.h"
#include "perf/traffic.h"

namespace hero {
namespace {

using nlohmann::ordered_json;

struct CostOptions {
  std::vector<std::string> configs;
  Layout layout;
  double teraflops = 0, gigabytes = 0;  // per second; 0: not given
  bool measure = false;
  bool as_json = false;
};

// A quantity of both variants; `compared` is that of compared_kind().
struct Row {
  std::string name;
  double baseline = 0, compared = 0;
};

struct Table {
  std::string name, unit;  // "MiB", "ms", or empty: thousands, millions and so on
  std::vector<Row> rows;
  std::string total = "total";  // name of the last row; empty: none
};

Row& row_of(Table& table, const std::string& name) {
  for (Row& row : table.rows) {
    if (row.name == name) return row;
  }
  return table.rows.emplace_back(Row{.name = name});
}

using Column = double Row::*;

void add_costs(Table& table, const std::vector<CostItem>& costs, Column column, double CostItem::* quantity,
               double times = 1) {
  for (const CostItem& item : costs) row_of(table, item.name).*column += item.*quantity * times;
}

void add_bytes(Table& table, const std::vector<MemoryItem>& costs, Column column) {
  for (const MemoryItem& item : costs) row_of(table, item.name).*column += item.bytes;
}

void add_times(Table& table, const std::vector<TimeItem>& costs, Column column) {
  for (const TimeItem& item : costs) row_of(table, item.name).*column += item.seconds;
}

void finish(Table& table) {
  std::erase_if(table.rows, [](const Row& row) { return row.baseline == 0 && row.compared == 0; });
  if (table.total.empty()) return;
  Row sum{.name = table.total};
  for (const Row& row : table.rows) {
    sum.baseline += row.baseline;
    sum.compared += row.compared;
  }
  table.rows.push_back(sum);
}

Table router_rows(const std::vector<CostItem>& baseline, const std::vector<CostItem>& compared,
                  double tokens) {
  Table table{.name = "router operations of a step", .unit = "", .rows = {}, .total = ""};
  const auto sum = [&](const std::vector<CostItem>& costs, auto operations) {
    double n = 0;
    for (const CostItem& item : costs) {
      if (item.is_router()) n += operations(item);
    }
    return n * tokens;
  };
  const auto exact = [](const CostItem& item) { return item.forward + item.backward(); };
  const auto paper_count = [](const CostItem& item) { return item.paper; };
  table.rows = {{"paper's count", sum(baseline, paper_count), sum(compared, paper_count)},
                {"exact", sum(baseline, exact), sum(compared, exact)}};
  return table;
}

bool is_single_device(const Layout& l) { return l.data * l.pipeline * l.expert * l.in_flight == 1; }

// The process memory table is for a single device, the time table needs rates.
std::vector<Table> tables(const Config& config, const Layout& layout, const std::optional<Rates>& rates) {
  Config variants[2] = {config, config};
  variants[0].router.kind = router_kinds().front().name;
  variants[1].router.kind = compared_kind(config.router).name;
  const Column columns[2] = {&Row::baseline, &Row::compared};
  const double tokens = static_cast<double>(config.train.global_batch * config.train.sequence) /
                        static_cast<double>(layout.data);

  Table parameters{.name = "parameters", .unit = "", .rows = {}},
      active{.name = "active parameters", .unit = "", .rows = {}},
      paper{.name = "operations of a step, paper's count", .unit = "", .rows = {}},
      exact{.name = "operations of a step, exact", .unit = "", .rows = {}},
      memory{.name = "memory of a device", .unit = "MiB", .rows = {}, .total = "peak"},
      traffic{.name = "bytes a device sends in a step", .unit = "MiB", .rows = {}},
      process{.name = "resident memory of hero train on CPUs", .unit = "MiB", .rows = {}, .total = "peak"},
      time{.name = "predicted time of a step", .unit = "ms", .rows = {}};
  std::vector<CostItem> costs[2];
  for (int v = 0; v < 2; ++v) {
    costs[v] = model_costs(variants[v]);
    add_costs(parameters, costs[v], columns[v], &CostItem::parameters);
    add_costs(active, costs[v], columns[v], &CostItem::active);
    add_costs(paper, costs[v], columns[v], &CostItem::paper, tokens);
    add_costs(exact, costs[v], columns[v], &CostItem::forward, tokens);
    add_costs(exact, costs[v], columns[v], &CostItem::input_gradient, tokens);
    add_costs(exact, costs[v], columns[v], &CostItem::weight_gradient, tokens);
    add_bytes(memory, device_memory(variants[v], layout), columns[v]);
    add_bytes(traffic, device_traffic(variants[v], layout), columns[v]);
    if (is_single_device(layout)) add_bytes(process, process_memory(variants[v]), columns[v]);
    if (rates) add_times(time, step_time(variants[v], *rates), columns[v]);
  }
  std::vector<Table> all = {parameters, active,  router_rows(costs[0], costs[1], tokens),
                            paper,      exact,   memory,
                            process,    traffic, time};
  for (Table& table : all) finish(table);
  std::erase_if(all, [](const Table& table) { return table.rows.size() <= (table.total.empty() ? 0u : 1u); });
  return all;
}

// The unit in which the last row, the largest, has one to three integer digits.
std::pair<double, std::string> scale_of(const Table& table) {
  if (table.unit == "MiB") return {1 << 20, "MiB"};
  if (table.unit == "ms") return {1e-3, "ms"};
  const double largest = table.rows.back().compared;
  for (const auto& [scale, letter] : {std::pair{1e12, "T"}, {1e9, "G"}, {1e6, "M"}}) {
    if (largest >= scale) return {scale, letter};
  }
  return {1e3, "k"};
}

void print(const std::vector<Table>& all, const RouterKindInfo& compared) {
  for (const Table& table : all) {
    const auto [scale, unit] = scale_of(table);
    std::printf("\n%-40s %14s %14s %14s\n", (table.name + " [" + unit + "]").c_str(), "baseline",
                compared.title.c_str(), "difference");
    for (const Row& row : table.rows) {
      const double difference = row.compared - row.baseline;
      std::printf("%-40s %14.3f %14.3f %+14.3f", row.name.c_str(), row.baseline / scale, row.compared / scale,
                  difference / scale);
      if (row.baseline > 0 && difference != 0) std::printf("  %+.2f%%", 100 * difference / row.baseline);
      std::printf("\n");
    }
  }
}

void print_json(const std::vector<Table>& all, const RouterKindInfo& compared) {
  ordered_json out = ordered_json::object();
  for (const Table& table : all) {
    for (const Row& row : table.rows)
      out[table.name][row.name] = {{"baseline", row.baseline}, {compared.name, row.compared}};
  }
  std::printf("%s\n", out.dump(1).c_str());
}

void check_layout(const Config& config, const Layout& layout) {
  const auto reject = [](const char* name, int64_t found, const std::string& expected) {
    throw UserError(std::string(name) + ": found " + std::to_string(found) + ", expected " + expected);
  };
  if (config.train.global_batch % (layout.data * config.train.micro_batch) != 0) {
    reject("--data-ranks", layout.data,
           "a divisor of train.global_batch / train.micro_batch = " +
               std::to_string(config.train.global_batch / config.train.micro_batch));
  }
  const int64_t layers = config.model.num_hidden_layers;
  if (layout.pipeline > layers)
    reject("--pipeline-stages", layout.pipeline,
           "at most model.num_hidden_layers = " + std::to_string(layers));
  if (layout.data % layout.expert != 0)
    reject("--expert-ranks", layout.expert, "a divisor of --data-ranks = " + std::to_string(layout.data));
  if (config.model.num_experts % layout.expert != 0) {
    reject("--expert-ranks", layout.expert,
           "a divisor of model.num_experts = " + std::to_string(config.model.num_experts));
  }
  if (layout.pipeline == 1) return;
  // What only training with pipeline stages requires.
  Config trained = config;
  trained.parallel.data = layout.data;
  trained.parallel.expert = layout.expert;
  trained.parallel.pipeline = layout.pipeline;
  trained.parallel.chunks = 1;
  trained.parallel.schedule = PipelineSchedule::k1F1B;
  check(trained);
}

std::optional<Rates> rates_of(const CostOptions& options, const Config& config) {
  Rates rates{options.teraflops * 1e12, options.gigabytes * 1e9};
  const int64_t devices = options.layout.data * options.layout.pipeline;
  if (devices > 1 && (options.measure || rates.operations > 0)) {
    throw UserError(std::string(options.measure ? "--measure" : "--rate") + ": found " +
                    std::to_string(devices) +
                    " devices, expected one; hero plan predicts the time of several");
  }
  if (!options.measure) {
    if (rates.operations > 0) return rates;
    if (rates.bytes > 0) throw UserError("--bandwidth: found no --rate, expected both");
    return std::nullopt;
  }
  const Rates measured = measure_rates(config);
  if (rates.operations == 0) rates.operations = measured.operations;
  if (rates.bytes == 0) rates.bytes = measured.bytes;
  return rates;
}

void run_cost(const CostOptions& options, const std::vector<std::string>& flags) {
  const Config config = load_config(options.configs, flags);
  check(config);
  check_layout(config, options.layout);
  check_vocabulary(config);
  const auto rates = rates_of(options, config);
  const auto all = tables(config, options.layout, rates);
  const RouterKindInfo& compared = compared_kind(config.router);
  if (options.as_json) return print_json(all, compared);
  const Layout& l = options.layout;
  std::printf(
      "%ld tokens per step and data rank; data %ld x pipeline %ld x expert %ld; %ld x %ld tokens in flight\n",
      config.train.global_batch * config.train.sequence / l.data, l.data, l.pipeline, l.expert, l.in_flight,
      config.train.micro_batch * config.train.sequence);
  if (rates) {
    std::printf("%.3f TFLOP/s of %s matrix products", rates->operations / 1e12,
                name_of(config.train.dtype).c_str());
    std::printf(rates->bytes > 0 ? ", %.1f GB/s\n" : "; non-matmul time not included\n", rates->bytes / 1e9);
  }
  print(all, compared);
}

}  // namespace

void add_cost_command(Command& hero) {
  auto options = std::make_shared<CostOptions>();
  auto* command = hero.subcommand("cost");
  add_config_option(*command, options->configs);
  const auto ranks_option = [&](const char* name, int64_t* value, const char* help) {
    command->add_option(name, *value, help).range(1, 1 << 20).show_default();
  };
  ranks_option("--data-ranks", &options->layout.data,
               "data parallel ranks; the batch and optimizer state are sharded over them");
  ranks_option("--pipeline-stages", &options->layout.pipeline, "pipeline parallel stages");
  ranks_option("--expert-ranks", &options->layout.expert, "expert parallel ranks");
  ranks_option("--in-flight", &options->layout.in_flight,
               "micro-batches whose activations a device holds at once");
  const auto rate_option = [&](const char* name, double* value, const char* help) {
    command->add_option(name, *value, help).range(0.0, 1e9).show_default();
  };
  rate_option("--rate", &options->teraflops,
              "TFLOP/s of matrix products in train.dtype, to predict the step time; 0: not given");
  rate_option("--bandwidth", &options->gigabytes,
              "memory bandwidth in GB/s, for non-matmul work; 0: not given");
  command->add_flag("--measure", options->measure,
                    "measure --rate and --bandwidth on this machine; flags override it");
  command->add_flag("--json", options->as_json,
                    "print all values as JSON, in operations, weights, bytes and seconds");
  command->allow_extras();
  command->footer("Configuration keys are given as --key=value; hero train --help lists them.");
  command->callback([options, command] { run_cost(*options, command->remaining()); });
}

}  // namespace hero
