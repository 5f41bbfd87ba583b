#include "perf/plan_report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "config/router_kinds.h"
#include "model/counts.h"

namespace hero {
namespace {

using nlohmann::ordered_json;

constexpr double kGiB = 1 << 30;

double parameters_of(const Config& config) {
  double sum = 0;
  for (const CostItem& item : model_costs(config)) sum += item.parameters;
  return sum;
}

void print_header(const Report& report) {
  const Cluster& c = report.cluster;
  const Config& config = report.layouts.front().config;
  const auto all = compared_routers(config.router);
  std::printf("%.3f B parameters; %ld sequences of %ld tokens per step\n", parameters_of(config) / 1e9,
              config.train.global_batch, config.train.sequence);
  std::printf("%ld GPUs, %ld per node: %g TFLOP/s at %.3g%%, %g GiB with %g reserved; GB/s: ", c.gpus,
              c.gpus_per_node, c.teraflops, 100 * c.efficiency, c.memory_gib, c.reserved_gib);
  if (c.bandwidth_memory_gbs > 0) std::printf("memory %g, ", c.bandwidth_memory_gbs);
  std::printf("node %g, network %g\n", c.bandwidth_node_gbs, c.bandwidth_network_gbs);
  if (report.tried > 0) {
    std::printf("%ld layouts, %ld fit into memory; the fastest with the router \"%s\":\n", report.tried,
                report.fitting, all[configured_router(config.router)].title.c_str());
  } else {
    std::printf("the configured layout:\n");
  }
  const std::string compared = compared_kind(config.router).title;
  std::printf("baseline: seconds per step; %s\n",
              (all.size() > 2 ? "stage, global: overhead of " + compared + " with this history"
                              : compared + ": overhead")
                  .c_str());
}

void print_layouts(const Report& report) {
  std::printf("\n%4s %5s %6s %6s %-15s %-8s %6s %9s %9s %11s %6s %7s %7s", "", "data", "stages", "expert",
              "schedule", "layers", "micro", "recompute", "step [s]", "tokens/s", "MFU", "bubble", "GiB");
  for (const ComparedRouter& router : compared_routers(report.layouts.front().config.router))
    std::printf(" %9s", router.column.c_str());
  std::printf("\n");
  for (size_t i = 0; i < report.layouts.size(); ++i) {
    const Comparison& c = report.layouts[i];
    const ParallelConfig& p = c.config.parallel;
    const Prediction& own = c.configured();
    const std::string schedule = name_of(p.schedule) + (p.chunks > 1 ? " " + std::to_string(p.chunks) : "");
    std::printf("%4zu %5ld %6ld %6ld %-15s %-8s %6ld %9s %9.4f %11.0f %5.1f%% %6.1f%% %7.1f", i + 1, p.data,
                p.pipeline, p.expert, schedule.c_str(),
                p.chunk_sizes.empty() ? "default"
                : report.tried > 0    ? "balanced"
                                      : "custom",
                c.config.train.micro_batch, c.config.train.recompute ? "yes" : "no", own.seconds,
                own.tokens_per_second, 100 * own.mfu, 100 * own.bubble, total(own.memory) / kGiB);
    const double baseline = c.predictions.front().seconds;
    std::printf(" %9.4f", baseline);
    for (size_t v = 1; v < c.predictions.size(); ++v)
      std::printf(" %+8.2f%%", 100 * (c.predictions[v].seconds / baseline - 1));
    std::printf("\n");
  }
}

// One row per time item, one column per layout.
void print_shares(const Report& report) {
  const size_t columns = std::min<size_t>(report.layouts.size(), 6);
  std::printf("\n%-40s", "share of the step, layout");
  for (size_t i = 0; i < columns; ++i) std::printf(" %8zu", i + 1);
  std::printf("\n");
  const std::vector<TimeItem>& items = report.layouts.front().configured().time;
  for (size_t item = 0; item < items.size(); ++item) {
    std::printf("%-40s", items[item].name.c_str());
    for (size_t i = 0; i < columns; ++i) {
      const Prediction& own = report.layouts[i].configured();
      std::printf(" %7.1f%%", 100 * own.time[item].seconds / own.seconds);
    }
    std::printf("\n");
  }
}

struct Row {
  std::string name;
  std::vector<double> values;  // of each router
};

void print_row(const std::string& name, const std::vector<double>& values) {
  std::printf("%-40s", name.c_str());
  for (const double value : values) std::printf(" %14.4f", value);
  std::printf("\n");
}

void print_rows(const std::string& head, const std::vector<ComparedRouter>& columns,
                const std::vector<Row>& rows, const char* total) {
  std::printf("\n%-40s", head.c_str());
  for (const ComparedRouter& router : columns) std::printf(" %14s", router.title.c_str());
  std::printf("\n");
  std::vector<double> sums(columns.size());
  for (const Row& row : rows) {
    for (size_t v = 0; v < sums.size(); ++v) sums[v] += row.values[v];
    if (std::ranges::any_of(row.values, [](double value) { return value != 0; }))
      print_row(row.name, row.values);
  }
  print_row(total, sums);
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
  const auto columns = compared_routers(first.config.router);
  const auto rows = [&](auto items, auto value) {
    std::vector<Row> out;
    for (size_t i = 0; i < (first.predictions.front().*items).size(); ++i) {
      out.push_back({(first.predictions.front().*items)[i].name, {}});
      for (const Prediction& p : first.predictions) out.back().values.push_back(value((p.*items)[i]));
    }
    return out;
  };
  const auto gib = [](const MemoryItem& item) { return item.bytes / kGiB; };
  const auto time = rows(&Prediction::time, [](const TimeItem& item) { return item.seconds; });
  print_rows("layout 1: time of a step [s]", columns, time, "step");
  print_rows("layout 1: peak memory per GPU [GiB]", columns, rows(&Prediction::memory, gib), "peak");
  print_rows("layout 1: sent per GPU and step [GiB]", columns, rows(&Prediction::traffic, gib), "total");
  std::printf("\nbubble %.2f%%; %.2f%% for equal chunks and passes without communication\n",
              100 * first.configured().bubble, 100 * first.predictions.front().ideal_bubble);
}

double hours_of(const Prediction& p, const Hours& hours) { return p.seconds * hours.steps / 3600; }

void print_hours(const Report& report, const Hours& h) {
  const Comparison& c = report.layouts.front();
  std::printf("\n%-40s %14s %14s\n", "hours", "predicted", "measured");
  const auto all = compared_routers(c.config.router);
  for (size_t v = 0; v < all.size(); ++v) {
    const double measured = v == 0 ? h.baseline : v == 1 ? h.compared : 0;
    const double predicted = hours_of(c.predictions[v], h), base = hours_of(c.predictions.front(), h);
    std::printf("%-40s %14.2f", all[v].title.c_str(), predicted);
    if (measured > 0) {
      std::printf(" %14.2f", measured);
    } else {
      std::printf(" %14s", "");
    }
    if (v > 0) std::printf("   predicted %+.2f%%", 100 * (predicted / base - 1));
    if (v > 0 && measured > 0) std::printf(", measured %+.2f%%", 100 * (measured / h.baseline - 1));
    if (v == 0)
      std::printf("   fitted: %.3g%% of the TFLOP/s, %.4f s per step", 100 * report.cluster.efficiency,
                  c.predictions.front().seconds);
    std::printf("\n");
  }
}

ordered_json as_json(const Prediction& p) {
  ordered_json out = {{"seconds", p.seconds},
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

void print_report(const Report& report) {
  print_header(report);
  print_layouts(report);
  if (report.layouts.size() > 1) print_shares(report);
  print_fastest(report.layouts.front());
  if (report.hours) print_hours(report, *report.hours);
}

void print_report_json(const Report& report) {
  ordered_json out;
  Cluster cluster = report.cluster;
  for (const Field& field : cluster_fields(cluster))
    std::visit([&](const auto& value) { out["cluster"][field.key] = value; }, read(field));
  out["layouts_tried"] = report.tried;
  out["layouts_fitting"] = report.fitting;
  out["layouts"] = ordered_json::array();
  const auto all = compared_routers(report.layouts.front().config.router);
  for (const Comparison& c : report.layouts) {
    const ParallelConfig& p = c.config.parallel;
    ordered_json layout = {{"parallel.data", p.data},
                           {"parallel.pipeline", p.pipeline},
                           {"parallel.expert", p.expert},
                           {"parallel.chunks", p.chunks},
                           {"parallel.schedule", name_of(p.schedule)},
                           {"parallel.chunk_sizes", p.chunk_sizes},
                           {"train.micro_batch", c.config.train.micro_batch},
                           {"train.recompute", c.config.train.recompute}};
    for (size_t v = 0; v < all.size(); ++v) layout[all[v].key] = as_json(c.predictions[v]);
    out["layouts"].push_back(std::move(layout));
  }
  if (report.hours) {
    const Hours& h = *report.hours;
    for (size_t v = 0; v < all.size(); ++v)
      out["hours"][all[v].key] = hours_of(report.layouts.front().predictions[v], h);
    out["hours"]["measured"] = {{all[0].key, h.baseline}, {all[1].key, h.compared}};
  }
  std::printf("%s\n", out.dump(1).c_str());
}

}  // namespace hero
