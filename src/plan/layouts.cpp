#include "plan/layouts.h"

#include <algorithm>

#include "config/error.h"
#include "model/counts.h"

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

// Expert ranks, micro-batches and recomputation for a pipeline.
void add_ranks_and_batches(Config c, std::vector<Config>& all) {
  for (int64_t expert = 1; expert <= c.parallel.data; ++expert) {
    if (c.parallel.data % expert != 0 || c.model.num_experts % expert != 0) continue;
    c.parallel.expert = expert;
    for (c.train.micro_batch = 1; c.train.micro_batch <= kMostMicroBatch; c.train.micro_batch *= 2) {
      for (const bool recompute : {false, true}) {
        c.train.recompute = recompute;
        if (accepted(c)) all.push_back(c);
      }
    }
  }
}

}  // namespace

std::vector<int64_t> balanced_chunks(const Config& config, int64_t chunks) {
  const int64_t layers = config.model.num_hidden_layers;
  const auto visible = visible_counts(config);
  std::vector<double> until = {0};  // operations of the first layers
  for (int64_t i = 0; i < layers; ++i) {
    until.push_back(until.back());
    for (const Part& part : layer_parts(config, i, visible[i])) until.back() += part.forward + part.backward;
  }
  until.back() += 6 * static_cast<double>(config.model.vocab_size * config.model.hidden_size);
  // most[c][i]: of the fullest part when the first i layers are split into c + 1; cut[c][i]: where the last
  // of these begins.
  std::vector<std::vector<double>> most(chunks, until);
  std::vector<std::vector<int64_t>> cut(chunks, std::vector<int64_t>(layers + 1, 0));
  for (int64_t c = 1; c < chunks; ++c) {
    for (int64_t i = c + 1; i <= layers; ++i) {
      most[c][i] = until.back() + 1;
      for (int64_t j = c; j < i; ++j) {
        const double fullest = std::max(most[c - 1][j], until[i] - until[j]);
        if (fullest >= most[c][i]) continue;
        most[c][i] = fullest;
        cut[c][i] = j;
      }
    }
  }
  std::vector<int64_t> sizes(chunks);
  for (int64_t c = chunks - 1, end = layers; c >= 0; end = cut[c--][end]) sizes[c] = end - cut[c][end];
  return sizes;
}

std::vector<Config> layouts(const Config& config, int64_t gpus) {
  std::vector<Config> all;
  const int64_t layers = config.model.num_hidden_layers;
  for (int64_t pipeline = 1; pipeline <= std::min(gpus, layers); ++pipeline) {
    if (gpus % pipeline != 0) continue;
    for (const auto& [schedule, chunks] : schedules(pipeline)) {
      if (pipeline * chunks > layers) continue;
      std::vector<std::vector<int64_t>> splits = {{}};
      if (pipeline > 1) splits.push_back(balanced_chunks(config, pipeline * chunks));
      for (const auto& split : splits) {
        Config c = config;
        c.parallel.pipeline = pipeline;
        c.parallel.data = gpus / pipeline;
        c.parallel.schedule = schedule;
        c.parallel.chunks = chunks;
        c.parallel.chunk_sizes = split;
        add_ranks_and_batches(c, all);
      }
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
