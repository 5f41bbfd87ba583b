#include "perf/cost_table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "config/router_kinds.h"
#include "io/error.h"
#include "io/step_progress.h"
#include "model/counts.h"
#include "ops/cuda_library.h"
#include "perf/machine.h"
#include "perf/memory.h"
#include "perf/process_memory.h"
#include "perf/stage_memory.h"
#include "perf/step_benchmark_process.h"

namespace hero {
namespace {

using nlohmann::ordered_json;
using Samples = std::vector<double>;

double median(Samples values) {
  const size_t half = values.size() / 2;
  std::ranges::sort(values);
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// A column of the table: one value per round for both models. Counted values are equal in all rounds.
struct Column {
  std::string key;    ///< in the JSON
  std::string title;  ///< in the table; empty: only in the JSON
  std::string unit;
  std::string per;   ///< what the value refers to
  double scale = 1;  ///< the table shows value * scale
  Samples baseline = {}, compared = {};

  bool known() const { return !baseline.empty() && !compared.empty(); }
  double difference() const { return median(compared) - median(baseline); }
  double percent() const { return 100 * difference() / median(baseline); }
  Samples percents() const {
    Samples values;
    for (size_t i = 0; i < std::min(baseline.size(), compared.size()); ++i)
      values.push_back(100 * (compared[i] / baseline[i] - 1));
    return values;
  }
};

struct Operations {
  double router = 0, total = 0, router_exact = 0, total_exact = 0;
};

// Tokens of a step, or of a micro-batch for forward passes.
int64_t tokens_of(const Config& config, bool forward) {
  const auto& t = config.train;
  return (forward ? t.micro_batch : t.global_batch) * t.sequence;
}

// Operations of a step, or of a micro-batch's forward pass; the paper's count has no forward-only figure.
Operations operations(const Config& config, bool forward) {
  Operations sum;
  const auto tokens = static_cast<double>(tokens_of(config, forward));
  for (const CostItem& item : model_costs(config)) {
    const double exact = (item.forward + (forward ? 0 : item.backward())) * tokens,
                 paper = forward ? exact : item.paper * tokens;
    sum.total += paper;
    sum.total_exact += exact;
    if (!item.is_router()) continue;
    sum.router += paper;
    sum.router_exact += exact;
  }
  return sum;
}

double parameters(const Config& config) {
  double sum = 0;
  for (const CostItem& item : model_costs(config)) sum += item.parameters;
  return sum;
}

// Forward passes need little memory besides the weights.
double needed_memory(const Config& config, at::Device device, bool forward) {
  if (forward) return parameters(config) * ElementSizes(config).operand;
  return device.is_cpu() ? total(process_memory(config)) : total(device_memory(config, {}));
}

void check_memory(const Config& config, at::Device device, bool forward) {
  const double needed = needed_memory(config, device, forward), available = available_memory(device);
  if (needed <= available) return;
  char numbers[160];
  std::snprintf(numbers, sizeof numbers, "found %.0f MiB available, expected the %.0f MiB that ",
                available / (1 << 20), needed / (1 << 20));
  throw UserError("memory: " + std::string(numbers) +
                  "`hero cost` predicts for this configuration; use --layers N for the first N layers, "
                  "--forward for forward passes only, --train.micro_batch=1 for smaller batches");
}

std::vector<Column> measure(const Config variants[2], const CostTableOptions& options) {
  const auto& train = variants[0].train;
  const auto steps = static_cast<double>(train.steps);
  const bool forward = options.steps.forward;
  const std::string step = forward ? "forward pass of a micro-batch" : "optimizer step",
                    count = step + (forward ? "" : ", paper's count"),
                    passes = forward ? "forward" : "forward and backward";
  std::vector<Column> columns = {{"peak_memory_mib", "peak memory", "MiB", "process"},
                                 {"router_flops", "router FLOPs", "G", count, 1e-9},
                                 {"total_flops", "total FLOPs", "G", count, 1e-9},
                                 {"forward_ms", "forward time", "ms", "micro-batch, embedding to final norm"},
                                 {"router_step_ms", "router step time", "ms",
                                  step + ": " + passes + " of all routers (logits, softmax, history)"},
                                 {"total_training_hours", "total train time", "h",
                                  std::to_string(train.steps) + " steps at the measured step time"},
                                 {"step_ms", "", "ms", step},
                                 {"tensor_peak_mib", "", "MiB", "process, tensors only"},
                                 {"router_flops_exact", "", "", step},
                                 {"total_flops_exact", "", "", step},
                                 {"product_share", "", "", step + ", fraction of the GEMM throughput"}};
  const auto of_process = options.steps.warmup + options.steps.steps + profiled_steps(options.steps.steps);
  StepProgress progress(
      "step", 2 * options.rounds * of_process,
      {.rate_unit = "tok", .rate_per_item = static_cast<double>(tokens_of(variants[0], forward))});
  int64_t done = 0;
  for (int64_t round = 1; round <= options.rounds; ++round) {
    for (const bool compared : {false, true}) {
      const Config& config = variants[compared ? 1 : 0];
      const std::string note =
          "round " + std::to_string(round) + "/" + std::to_string(options.rounds) + " " + config.router.kind;
      const auto costs = measure_in_child(config, options.steps, [&] { progress.update(++done, note); });
      const auto counted = operations(config, forward);
      const auto median_of = [](const Samples& samples) {
        return samples.empty() ? std::nullopt : std::optional(median(samples));
      };
      const auto step_ms = median_of(costs.step_ms),
                 total_ms = forward ? median_of(costs.forward_ms) : step_ms;
      if (!total_ms) throw RunError("hero bench: found no measured step, expected at least one");
      const double seconds = *total_ms * 1e-3;
      const std::optional<double> values[] = {costs.peak_memory_mib,
                                              counted.router,
                                              counted.total,
                                              median_of(costs.forward_ms),
                                              median_of(costs.router_ms),
                                              step_ms ? std::optional(steps * seconds / 3600) : std::nullopt,
                                              step_ms,
                                              costs.tensor_peak_mib,
                                              counted.router_exact,
                                              counted.total_exact,
                                              counted.total_exact / seconds / costs.gemm_flops};
      for (size_t i = 0; i < columns.size(); ++i) {
        const auto& value = values[i];
        if (value) (compared ? columns[i].compared : columns[i].baseline).push_back(*value);
      }
    }
  }
  progress.finish();
  return columns;
}

ordered_json summary_json(const Samples& values) {
  return {{"median", median(values)},
          {"min", std::ranges::min(values)},
          {"max", std::ranges::max(values)},
          {"rounds", values}};
}

void print_json(const std::vector<Column>& columns, const Config& config, at::Device device,
                const CostTableOptions& options) {
  const auto machine = this_machine(device);
  const auto& t = config.train;
  ordered_json table = ordered_json::object();
  for (const Column& c : columns) {
    table[c.key] = nullptr;
    if (!c.known()) continue;
    table[c.key] = {
        {"per", c.per},
        {"baseline", summary_json(c.baseline)},
        {config.router.kind, summary_json(c.compared)},
        {"difference",
         {{"absolute", c.difference()}, {"percent", c.percent()}, {"percent_rounds", c.percents()}}}};
  }
  const ordered_json all = {{"machine",
                             {{"gpu", machine.gpu.empty() ? ordered_json() : ordered_json(machine.gpu)},
                              {"cpu", machine.cpu},
                              {"cores", machine.cores},
                              {"instructions", machine.instructions},
                              {"bf16_instructions", machine.bf16}}},
                            {"parameters", parameters(config)},
                            {"layers", config.model.num_hidden_layers},
                            {"dtype", name_of(t.dtype)},
                            {"forward", options.steps.forward},
                            {"tokens_a_step", tokens_of(config, options.steps.forward)},
                            {"micro_batches", options.steps.forward ? 1 : t.global_batch / t.micro_batch},
                            {"train_steps", t.steps},
                            {"rounds", options.rounds},
                            {"steps", options.steps.steps},
                            {"columns", table}};
  std::printf("%s\n", all.dump(1).c_str());
}

constexpr int kWidth = 22;

void print_row(const std::string& name, const std::vector<std::string>& cells) {
  std::printf("%-12s", name.c_str());
  for (const auto& cell : cells) std::printf(" %*s", kWidth, cell.c_str());
  std::printf("\n");
}

std::string digits(double value, bool sign = false) {
  char text[40];
  const int places = std::fabs(value) >= 1000 ? 1 : std::fabs(value) >= 1 ? 2 : 4;
  std::snprintf(text, sizeof text, sign ? "%+.*f" : "%.*f", places, value);
  return text;
}

std::string range(const Samples& values, double scale, const char* end = "") {
  const auto [low, high] = std::ranges::minmax(values);
  return low == high ? "" : digits(low * scale) + ".." + digits(high * scale) + end;
}

void print_table(const std::vector<Column>& all, const Config& config, at::Device device,
                 const CostTableOptions& options) {
  const auto& t = config.train;
  std::printf("%s\n", to_string(this_machine(device)).c_str());
  std::printf(
      "%s parameters in %ld layers, %s, %s tokens per %s in micro-batches of %ld x %ld; %ld rounds of %ld "
      "%s\n\n",
      format_with_commas(std::llround(parameters(config))).c_str(), config.model.num_hidden_layers,
      name_of(t.dtype).c_str(), format_with_commas(tokens_of(config, options.steps.forward)).c_str(),
      options.steps.forward ? "pass" : "step", t.micro_batch, t.sequence, options.rounds, options.steps.steps,
      options.steps.forward ? "passes" : "steps");
  std::vector<Column> columns;
  for (const Column& c : all) {
    if (!c.title.empty()) columns.push_back(c);
  }
  const auto row = [&](const std::string& name, const auto& cell) {
    std::vector<std::string> cells;
    for (const Column& c : columns) cells.push_back(c.known() ? cell(c) : "-");
    print_row(name, cells);
  };
  std::vector<std::string> titles;
  for (const Column& c : columns) titles.push_back(c.title + " [" + c.unit + "]");
  print_row("", titles);
  row("baseline", [](const Column& c) { return digits(median(c.baseline) * c.scale); });
  row("  rounds", [](const Column& c) { return range(c.baseline, c.scale); });
  row(router_kind_info(config.router).title,
      [](const Column& c) { return digits(median(c.compared) * c.scale); });
  row("  rounds", [](const Column& c) { return range(c.compared, c.scale); });
  row("difference", [](const Column& c) { return digits(c.difference() * c.scale, true); });
  row("", [](const Column& c) { return digits(c.percent(), true) + "%"; });
  row("  rounds", [](const Column& c) { return range(c.percents(), 1, "%"); });
  std::printf("\nMedians and ranges over rounds. Each value is per:\n");
  for (const Column& c : columns) std::printf("  %-17s %s\n", c.title.c_str(), c.per.c_str());
}

}  // namespace

Config first_layers(const Config& config, int64_t layers) {
  Config cut = config;
  ModelConfig& m = cut.model;
  if (layers < 1 || layers > m.num_hidden_layers) {
    throw UserError("--layers: found " + std::to_string(layers) +
                    ", expected 1 to model.num_hidden_layers = " + std::to_string(m.num_hidden_layers));
  }
  m.num_hidden_layers = layers;
  std::erase_if(m.mlp_only_layers, [&](int64_t i) { return i >= layers; });
  const int64_t before = moe_layers(config.model), after = moe_layers(m);
  RouterConfig& r = cut.router;
  r.stages = std::min(r.stages, std::max<int64_t>(after, 1));
  if (r.stage_sizes.empty()) return cut;
  // Stage boundaries keep their fraction of the layers; no stage is empty.
  std::vector<int64_t> sizes;
  int64_t end = 0, cut_end = 0;
  for (int64_t s = 0; s < r.stages; ++s) {
    end += r.stage_sizes[s];
    const bool last = s + 1 == r.stages;
    const int64_t place = std::llround(static_cast<double>(end * after) / static_cast<double>(before));
    const int64_t next = last ? after : std::clamp(place, cut_end + 1, after - (r.stages - 1 - s));
    sizes.push_back(next - cut_end);
    cut_end = next;
  }
  r.stage_sizes = std::move(sizes);
  return cut;
}

void run_cost_table(const Config& config, const CostTableOptions& options) {
  const auto device = choose_device(config.train.device, "train.device");
  Config variants[2] = {config, config};
  variants[0].router.kind = router_kinds().front().name;
  variants[1].router.kind = compared_kind(config.router).name;
  for (const Config& variant : variants) {
    check(variant);
    check_vocabulary(variant);
    check_memory(variant, device, options.steps.forward);
  }
  const auto columns = measure(variants, options);
  if (options.as_json) return print_json(columns, variants[1], device, options);
  print_table(columns, variants[1], device, options);
}

}  // namespace hero
