#include "perf/plan_report.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "config/router_kinds.h"
#include "model/counts.h"

namespace hero {
namespace {

using json = nlohmann::ordered_json;

constexpr double kGiB = 1 << 30;
constexpr std::array kNames = {"baseline", "HERO, stage", "HERO, global"};
constexpr std::array kKeys = {"baseline", "hero_stage", "hero_global"};

std::array<const Prediction*, 3> variants(const Comparison& c) { return {&c.baseline, &c.stage, &c.global}; }

// Index of the configured variant, by which layouts are ranked.
size_t selected_variant(const Config& config) {
  if (!router_kind_info(config.router).stores_probs) return 0;
  return config.router.has_global_history() ? 2 : 1;
}

double parameters_of(const Config& config) {
  double sum = 0;
  for (const CostItem& item : model_costs(config)) sum += item.parameters;
  return sum;
}

void print_header(const Report& report) {
  const Cluster& c = report.cluster;
  const Config& config = report.layouts.front().config;
  std::printf("%.3f B parameters; %ld sequences of %ld tokens per step\n", parameters_of(config) / 1e9,
              config.train.global_batch, config.train.sequence);
  std::printf("%ld GPUs, %ld per node: %g TFLOP/s at %.3g%%, %g GiB with %g reserved; GB/s: ", c.gpus,
              c.gpus_per_node, c.teraflops, 100 * c.efficiency, c.memory_gib, c.reserved_gib);
  if (c.bandwidth_memory_gbs > 0) std::printf("memory %g, ", c.bandwidth_memory_gbs);
  std::printf("node %g, network %g\n", c.bandwidth_node_gbs, c.bandwidth_network_gbs);
  if (report.tried > 0) {
    std::printf("%ld layouts, %ld fit into memory; the fastest with the router \"%s\":\n", report.tried,
                report.fitting, kNames[selected_variant(config)]);
  } else {
    std::printf("the configured layout:\n");
  }
  std::printf("baseline: seconds per step; stage, global: overhead of HERO with this history\n");
}

void print_layouts(const Report& report) {
  std::printf("\n%4s %5s %6s %6s %-15s %-8s %6s %9s %9s %11s %6s %7s %7s %9s %9s %9s\n", "", "data", "stages",
              "expert", "schedule", "layers", "micro", "recompute", "step [s]", "tokens/s", "MFU", "bubble",
              "GiB", "baseline", "stage", "global");
  for (size_t i = 0; i < report.layouts.size(); ++i) {
    const Comparison& c = report.layouts[i];
    const ParallelConfig& p = c.config.parallel;
    const Prediction& selected = *variants(c)[selected_variant(c.config)];
    const std::string schedule = name_of(p.schedule) + (p.chunks > 1 ? " " + std::to_string(p.chunks) : "");
    std::printf("%4zu %5ld %6ld %6ld %-15s %-8s %6ld %9s %9.4f %11.0f %5.1f%% %6.1f%% %7.1f", i + 1, p.data,
                p.pipeline, p.expert, schedule.c_str(),
                p.chunk_sizes.empty() ? "default"
                : report.tried > 0    ? "balanced"
                                      : "custom",
                c.config.train.micro_batch, c.config.train.recompute ? "yes" : "no", selected.seconds,
                selected.tokens_per_second, 100 * selected.mfu, 100 * selected.bubble,
                total(selected.memory) / kGiB);
    for (const Prediction* p3 : variants(c)) {
      if (p3 == &c.baseline) {
        std::printf(" %9.4f", p3->seconds);
      } else {
        std::printf(" %+8.2f%%", 100 * (p3->seconds / c.baseline.seconds - 1));
      }
    }
    std::printf("\n");
  }
}

// One row per time item, one column per layout.
void print_shares(const Report& report) {
  const size_t columns = std::min<size_t>(report.layouts.size(), 6);
  std::printf("\n%-40s", "share of the step, layout");
  for (size_t i = 0; i < columns; ++i) std::printf(" %8zu", i + 1);
  std::printf("\n");
  const auto selected = [&](size_t i) -> const Prediction& {
    return *variants(report.layouts[i])[selected_variant(report.layouts[i].config)];
  };
  for (size_t item = 0; item < selected(0).time.size(); ++item) {
    std::printf("%-40s", selected(0).time[item].name.c_str());
    for (size_t i = 0; i < columns; ++i)
      std::printf(" %7.1f%%", 100 * selected(i).time[item].seconds / selected(i).seconds);
    std::printf("\n");
  }
}

struct Row {
  std::string name;
  std::array<double, 3> values;
};

void print_rows(const std::string& head, const std::vector<Row>& rows, const char* total) {
  std::printf("\n%-40s %14s %14s %14s\n", head.c_str(), kNames[0], kNames[1], kNames[2]);
  Row sum{total, {}};
  for (const Row& row : rows) {
    for (size_t v = 0; v < 3; ++v) sum.values[v] += row.values[v];
    if (std::ranges::all_of(row.values, [](double value) { return value == 0; })) continue;
    std::printf("%-40s %14.4f %14.4f %14.4f\n", row.name.c_str(), row.values[0], row.values[1],
                row.values[2]);
  }
  std::printf("%-40s %14.4f %14.4f %14.4f\n", total, sum.values[0], sum.values[1], sum.values[2]);
}

void print_flags(const Config& config) {
  const ParallelConfig& p = config.parallel;
  std::printf("\nlayout 1: --parallel.data=%ld --parallel.pipeline=%ld --parallel.expert=%ld", p.data,
              p.pipeline, p.expert);
  if (p.pipeline > 1) std::printf(" --parallel.schedule=%s", name_of(p.schedule).c_str());
  if (p.chunks > 1) std::printf(" --parallel.chunks=%ld", p.chunks);
  if (!p.chunk_sizes.empty()) {
    std::string sizes;
    for (const int64_t size : p.chunk_sizes) {
      if (!sizes.empty()) sizes += ',';
      sizes += std::to_string(size);
    }
    std::printf(" --parallel.chunk_sizes=[%s]", sizes.c_str());
  }
  std::printf(" --train.micro_batch=%ld --train.recompute=%s\n", config.train.micro_batch,
              config.train.recompute ? "true" : "false");
}

void print_fastest(const Comparison& first) {
  print_flags(first.config);
  const auto all = variants(first);
  std::vector<Row> time, memory, traffic;
  for (size_t i = 0; i < first.baseline.time.size(); ++i) {
    time.push_back({first.baseline.time[i].name, {}});
    for (size_t v = 0; v < 3; ++v) time.back().values[v] = all[v]->time[i].seconds;
  }
  for (size_t i = 0; i < first.baseline.memory.size(); ++i) {
    memory.push_back({first.baseline.memory[i].name, {}});
    for (size_t v = 0; v < 3; ++v) memory.back().values[v] = all[v]->memory[i].bytes / kGiB;
  }
  for (size_t i = 0; i < first.baseline.traffic.size(); ++i) {
    traffic.push_back({first.baseline.traffic[i].name, {}});
    for (size_t v = 0; v < 3; ++v) traffic.back().values[v] = all[v]->traffic[i].bytes / kGiB;
  }
  print_rows("layout 1: time of a step [s]", time, "step");
  print_rows("layout 1: peak memory per GPU [GiB]", memory, "peak");
  print_rows("layout 1: sent per GPU and step [GiB]", traffic, "total");
  std::printf("\nbubble %.2f%%; %.2f%% for equal chunks and passes without communication\n",
              100 * all[selected_variant(first.config)]->bubble, 100 * first.baseline.ideal_bubble);
}

double hours_of(const Prediction& p, const Hours& hours) { return p.seconds * hours.steps / 3600; }

void print_hours(const Report& report) {
  const Hours& h = *report.hours;
  const Comparison& c = report.layouts.front();
  std::printf("\n%-40s %14s %14s\n", "hours", "predicted", "measured");
  const auto row = [&](size_t v, double measured) {
    const double predicted = hours_of(*variants(c)[v], h), base = hours_of(c.baseline, h);
    std::printf("%-40s %14.2f", kNames[v], predicted);
    if (measured > 0) {
      std::printf(" %14.2f", measured);
    } else {
      std::printf(" %14s", "");
    }
    if (v > 0) std::printf("   predicted %+.2f%%", 100 * (predicted / base - 1));
    if (v > 0 && measured > 0) std::printf(", measured %+.2f%%", 100 * (measured / h.baseline - 1));
    if (v == 0)
      std::printf("   fitted: %.3g%% of the TFLOP/s, %.4f s per step", 100 * report.cluster.efficiency,
                  c.baseline.seconds);
    std::printf("\n");
  };
  row(0, h.baseline);
  row(1, h.hero);
  row(2, 0);
}

json as_json(const Prediction& p) {
  json out = {{"seconds", p.seconds},
              {"tokens_per_second", p.tokens_per_second},
              {"mfu", p.mfu},
              {"bubble", p.bubble},
              {"ideal_bubble", p.ideal_bubble}};
  for (const TimeItem& item : p.time) out["time"][item.name] = item.seconds;
  for (const MemoryItem& item : p.memory) out["memory"][item.name] = item.bytes;
  out["memory"]["peak"] = total(p.memory);
  for (const MemoryItem& item : p.traffic) out["traffic"][item.name] = item.bytes;
  return out;
}

}  // namespace

Comparison compare(const Config& config, const Cluster& cluster) {
  return {config, predict(as_baseline(config), cluster),
          predict(as_hero(config, HistoryScope::kStage), cluster),
          predict(as_hero(config, HistoryScope::kGlobal), cluster)};
}

void print_report(const Report& report) {
  print_header(report);
  print_layouts(report);
  if (report.layouts.size() > 1) print_shares(report);
  print_fastest(report.layouts.front());
  if (report.hours) print_hours(report);
}

void print_report_json(const Report& report) {
  json out;
  Cluster cluster = report.cluster;
  for (const Field& field : cluster_fields(cluster))
    std::visit([&](const auto& value) { out["cluster"][field.key] = value; }, read(field));
  out["layouts_tried"] = report.tried;
  out["layouts_fitting"] = report.fitting;
  out["layouts"] = json::array();
  for (const Comparison& c : report.layouts) {
    const ParallelConfig& p = c.config.parallel;
    json layout = {{"parallel.data", p.data},
                   {"parallel.pipeline", p.pipeline},
                   {"parallel.expert", p.expert},
                   {"parallel.chunks", p.chunks},
                   {"parallel.schedule", name_of(p.schedule)},
                   {"parallel.chunk_sizes", p.chunk_sizes},
                   {"train.micro_batch", c.config.train.micro_batch},
                   {"train.recompute", c.config.train.recompute}};
    for (size_t v = 0; v < 3; ++v) layout[kKeys[v]] = as_json(*variants(c)[v]);
    out["layouts"].push_back(std::move(layout));
  }
  if (report.hours) {
    const Comparison& c = report.layouts.front();
    for (size_t v = 0; v < 3; ++v) out["hours"][kKeys[v]] = hours_of(*variants(c)[v], *report.hours);
    out["hours"]["measured"] = {{"baseline", report.hours->baseline}, {"hero_stage", report.hours->hero}};
  }
  std::printf("%s\n", out.dump(1).c_str());
}

}  // namespace hero
