#include "perf/layouts.h"

#include <algorithm>
#include <limits>

#include "io/error.h"

namespace hero {
namespace {

constexpr int64_t kMostChunks = 4, kMostMicroBatch = 16;

bool accepted(const Config& config) {
  try {
    check(config);
    return true;
  } catch (const UserError&) {
    return false;
  }
}

double bytes_for_model(const Cluster& cluster) {
  return (cluster.memory_gib - cluster.reserved_gib) * (1 << 30);
}

// Schedules with their chunks a rank.
std::vector<std::pair<std::string, int64_t>> schedules(int64_t pipeline) {
  if (pipeline == 1) return {{"1f1b", 1}};
  std::vector<std::pair<std::string, int64_t>> all = {{"1f1b", 1}, {"zero_bubble", 1}};
  for (int64_t chunks = 2; chunks <= kMostChunks; ++chunks) all.emplace_back("interleaved", chunks);
  return all;
}

// Seconds of all passes of the first layers, in a layout of one layer a chunk.
std::vector<double> seconds_until(const Config& config, const Cluster& cluster) {
  Config single = as_baseline(config);
  single.parallel.pipeline = config.model.num_hidden_layers;
  single.parallel.chunks = 1;
  single.parallel.chunk_sizes.assign(config.model.num_hidden_layers, 1);
  const auto costs = pipeline_costs(single, cluster);
  std::vector<double> until = {0};
  for (size_t i = 0; i < costs.forward.size(); ++i)
    until.push_back(until.back() + costs.forward[i] + costs.input_gradient[i] + costs.weight_gradient[i]);
  return until;
}

// Expert ranks, micro-batches, recomputation and splits for a pipeline.
void add_rest(Config c, const Cluster& cluster, std::vector<Config>& all) {
  const int64_t chunks = c.parallel.pipeline * c.parallel.chunks;
  for (int64_t expert = 1; expert <= c.parallel.data; ++expert) {
    if (c.parallel.data % expert != 0 || c.model.num_experts % expert != 0) continue;
    c.parallel.expert = expert;
    for (c.train.micro_batch = 1; c.train.micro_batch <= kMostMicroBatch; c.train.micro_batch *= 2) {
      for (const bool recompute : {false, true}) {
        c.train.recompute = recompute;
        c.parallel.chunk_sizes.clear();
        if (accepted(c)) all.push_back(c);
        if (chunks == 1) continue;
        const auto usual = chunk_bounds(c, chunks);
        c.parallel.chunk_sizes = balanced_chunks(c, cluster, chunks);
        if (chunk_bounds(c, chunks) != usual && accepted(c)) all.push_back(c);
      }
    }
  }
}

}  // namespace

std::vector<int64_t> balanced_chunks(const Config& config, const Cluster& cluster, int64_t chunks) {
  const int64_t layers = config.model.num_hidden_layers;
  const auto until = seconds_until(config, cluster);
  // most[c][i]: of the longest part when the first i layers are split into c + 1; cut[c][i]: where the last
  // of these begins.
  std::vector<std::vector<double>> most(chunks, until);
  std::vector<std::vector<int64_t>> cut(chunks, std::vector<int64_t>(layers + 1, 0));
  for (int64_t c = 1; c < chunks; ++c) {
    for (int64_t i = c + 1; i <= layers; ++i) {
      most[c][i] = std::numeric_limits<double>::infinity();
      for (int64_t j = c; j < i; ++j) {
        const double longest = std::max(most[c - 1][j], until[i] - until[j]);
        if (longest >= most[c][i]) continue;
        most[c][i] = longest;
        cut[c][i] = j;
      }
    }
  }
  std::vector<int64_t> sizes(chunks);
  for (int64_t c = chunks - 1, end = layers; c >= 0; end = cut[c--][end]) sizes[c] = end - cut[c][end];
  return sizes;
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
      add_rest(c, cluster, all);
    }
  }
  return all;
}

PlanSearch search(const std::vector<Config>& layouts, const Cluster& cluster, size_t keep,
                  const std::function<void(int64_t)>& tell) {
  PlanSearch found;
  for (const Config& config : layouts) {
    const double needed = total(planned_memory(config, schedule_of(config)));
    found.least_memory = found.tried == 0 ? needed : std::min(found.least_memory, needed);
    if (needed <= bytes_for_model(cluster)) {
      ++found.fitting;
      Plan plan{config, predict(config, cluster)};
      const auto slower = std::ranges::upper_bound(found.fastest, plan.prediction.seconds, {},
                                                   [](const Plan& p) { return p.prediction.seconds; });
      found.fastest.insert(slower, std::move(plan));
      if (found.fastest.size() > keep) found.fastest.pop_back();
    }
    tell(++found.tried);
  }
  return found;
}

Config own_layout(const Config& config, const Cluster& cluster) {
  Config own = config;
  ParallelConfig& p = own.parallel;
  if (cluster.gpus % p.pipeline != 0 || (p.data != 0 && p.data * p.pipeline != cluster.gpus)) {
    throw UserError("parallel: found data " + std::to_string(p.data) + " times pipeline " +
                    std::to_string(p.pipeline) + ", expected the cluster's " + std::to_string(cluster.gpus) +
                    " GPUs");
  }
  p.data = cluster.gpus / p.pipeline;
  check(own);
  return own;
}

double fitted_efficiency(const Config& config, Cluster cluster, double seconds) {
  const auto at = [&](double efficiency) {
    cluster.efficiency = efficiency;
    return predict(config, cluster).seconds;
  };
  if (const double least = at(1); least > seconds) {
    char text[160];
    std::snprintf(
        text, sizeof text,
        "--hours: found %.6g s a step, expected at least %.6g s, what the cluster's whole rate allows",
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

Config as_hero(Config config, const std::string& history) {
  config.router.kind = "hero";
  config.router.history = history;
  return config;
}

}  // namespace hero
