#include "perf/layouts.h"

#include <algorithm>
#include <limits>

#include "io/error.h"

namespace hero {
namespace {

constexpr int64_t kMaxChunks = 4, kMaxMicroBatch = 16;

bool is_valid(const Config& config) {
  try {
    check(config);
    return true;
  } catch (const UserError&) {
    return false;
  }
}

double available_bytes(const Cluster& cluster) {
  return (cluster.memory_gib - cluster.reserved_gib) * (1 << 30);
}

// Schedules with their chunks per rank.
std::vector<std::pair<PipelineSchedule, int64_t>> schedules(int64_t pipeline) {
  if (pipeline == 1) return {{PipelineSchedule::k1F1B, 1}};
  std::vector<std::pair<PipelineSchedule, int64_t>> all = {{PipelineSchedule::k1F1B, 1},
                                                           {PipelineSchedule::kZeroBubble, 1}};
  for (int64_t chunks = 2; chunks <= kMaxChunks; ++chunks)
    all.emplace_back(PipelineSchedule::kInterleaved, chunks);
  return all;
}

// Cumulative seconds of all passes over the first i layers, with one layer per chunk.
std::vector<double> cumulative_seconds(const Config& config, const Cluster& cluster) {
  Config single = as_baseline(config);
  single.parallel.pipeline = config.model.num_hidden_layers;
  single.parallel.chunks = 1;
  single.parallel.chunk_sizes.assign(config.model.num_hidden_layers, 1);
  const auto costs = pipeline_costs(single, cluster);
  std::vector<double> cumulative = {0};
  for (size_t i = 0; i < costs.forward.size(); ++i)
    cumulative.push_back(cumulative.back() + costs.forward[i] + costs.input_gradient[i] +
                         costs.weight_gradient[i]);
  return cumulative;
}

// Layers per chunk so that the slowest chunk is as fast as possible. Many splits are equally good: of those
// for the last chunk, `fewest_last` takes the one with the fewest layers there, then for the chunk before it.
std::vector<int64_t> split(const std::vector<double>& cumulative, int64_t chunks, bool fewest_last) {
  const auto layers = std::ssize(cumulative) - 1;
  constexpr double kRounding = 1e-9;  // relative difference of equal sums
  const double tie = fewest_last ? 1 + kRounding : 1 - kRounding;
  // longest[c][i]: time of the slowest chunk when the first i layers are split into c + 1 chunks; cut[c][i]:
  // first layer of the last of these chunks.
  std::vector<std::vector<double>> longest(chunks, cumulative);
  std::vector<std::vector<int64_t>> cut(chunks, std::vector<int64_t>(layers + 1, 0));
  for (int64_t c = 1; c < chunks; ++c) {
    for (int64_t i = c + 1; i <= layers; ++i) {
      longest[c][i] = std::numeric_limits<double>::infinity();
      for (int64_t j = c; j < i; ++j) {
        const double slowest = std::max(longest[c - 1][j], cumulative[i] - cumulative[j]);
        if (slowest >= longest[c][i] * tie) continue;
        longest[c][i] = slowest;
        cut[c][i] = j;
      }
    }
  }
  std::vector<int64_t> sizes(chunks);
  for (int64_t c = chunks - 1, end = layers; c >= 0; end = cut[c--][end]) sizes[c] = end - cut[c][end];
  return sizes;
}

// Varies expert ranks, micro-batch size, recomputation and layer split.
void add_variants(Config c, const Cluster& cluster, std::vector<Config>& all) {
  const int64_t chunks = c.parallel.pipeline * c.parallel.chunks;
  for (int64_t expert = 1; expert <= c.parallel.data; ++expert) {
    if (c.parallel.data % expert != 0 || c.model.num_experts % expert != 0) continue;
    c.parallel.expert = expert;
    for (c.train.micro_batch = 1; c.train.micro_batch <= kMaxMicroBatch; ++c.train.micro_batch) {
      for (const bool recompute : {false, true}) {
        c.train.recompute = recompute;
        c.parallel.chunk_sizes.clear();
        if (is_valid(c)) all.push_back(c);
        if (chunks == 1) continue;
        const auto default_bounds = chunk_bounds(c, chunks);
        for (const auto& sizes : balanced_splits(c, cluster, chunks)) {
          c.parallel.chunk_sizes = sizes;
          if (chunk_bounds(c, chunks) != default_bounds && is_valid(c)) all.push_back(c);
        }
      }
    }
  }
}

}  // namespace

std::vector<std::vector<int64_t>> balanced_splits(const Config& config, const Cluster& cluster,
                                                  int64_t chunks) {
  const auto cumulative = cumulative_seconds(config, cluster);
  std::vector<std::vector<int64_t>> splits = {split(cumulative, chunks, /*fewest_last=*/false)};
  if (auto other = split(cumulative, chunks, /*fewest_last=*/true); other != splits[0])
    splits.push_back(std::move(other));
  return splits;
}

std::vector<Config> layouts(const Config& config, const Cluster& cluster) {
  std::vector<Config> all;
  const int64_t layers = config.model.num_hidden_layers;
  for (int64_t pipeline = 1; pipeline <= std::min(cluster.gpus, layers); ++pipeline) {
    if (cluster.gpus % pipeline != 0) continue;
    for (const auto& [schedule, chunks] : schedules(pipeline)) {
      if (pipeline * chunks > layers) continue;
      Config c = config;
      c.parallel.pipeline = pipeline;
      c.parallel.data = cluster.gpus / pipeline;
      c.parallel.schedule = schedule;
      c.parallel.chunks = chunks;
      add_variants(c, cluster, all);
    }
  }
  return all;
}

PlanSearch search(const std::vector<Config>& layouts, const Cluster& cluster, size_t keep,
                  const std::function<void(int64_t)>& on_progress) {
  PlanSearch found;
  for (const Config& config : layouts) {
    const double needed = total(planned_memory(config, schedule_of(config)));
    found.min_memory = found.tried == 0 ? needed : std::min(found.min_memory, needed);
    if (needed <= available_bytes(cluster)) {
      ++found.fitting;
      Plan plan{config, predict(config, cluster)};
      const auto slower = std::ranges::upper_bound(found.fastest, plan.prediction.seconds, {},
                                                   [](const Plan& p) { return p.prediction.seconds; });
      found.fastest.insert(slower, std::move(plan));
      if (found.fastest.size() > keep) found.fastest.pop_back();
    }
    on_progress(++found.tried);
  }
  return found;
}

Config configured_layout(const Config& config, const Cluster& cluster) {
  Config configured = config;
  ParallelConfig& p = configured.parallel;
  if (cluster.gpus % p.pipeline != 0 || (p.data != 0 && p.data * p.pipeline != cluster.gpus)) {
    throw UserError("parallel: found data " + std::to_string(p.data) + " x pipeline " +
                    std::to_string(p.pipeline) + ", expected the cluster's " + std::to_string(cluster.gpus) +
                    " GPUs");
  }
  p.data = cluster.gpus / p.pipeline;
  check(configured);
  return configured;
}

double fit_efficiency(const Config& config, Cluster cluster, double seconds) {
  const auto at = [&](double efficiency) {
    cluster.efficiency = efficiency;
    return predict(config, cluster).seconds;
  };
  if (const double least = at(1); least > seconds) {
    char text[160];
    std::snprintf(text, sizeof text,
                  "--hours: found %.6g s per step, expected at least %.6g s, the time at an efficiency of 1",
                  seconds, least);
    throw UserError(text);
  }
  double low = 1e-6, high = 1;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (at(middle) > seconds ? low : high) = middle;
  }
  return high;
}

Config as_baseline(Config config) {
  config.router.kind = "baseline";
  return config;
}

}  // namespace hero
