#include "perf/prediction.h"

#include <algorithm>
#include <cmath>

#include "model/counts.h"
#include "model/router_kind.h"
#include "perf/stage_memory.h"
#include "perf/traffic.h"

namespace hero {
namespace {

constexpr double kGiga = 1e9, kMicro = 1e-6;

// Seconds of one pass of a chunk over a micro-batch.
struct PassSeconds {
  double matmul = 0, memory = 0, all_to_all = 0;
  double sum() const { return matmul + memory + all_to_all; }
  PassSeconds& operator+=(const PassSeconds& other) {
    matmul += other.matmul;
    memory += other.memory;
    all_to_all += other.all_to_all;
    return *this;
  }
};

struct ChunkSeconds {
  PassSeconds forward, input_gradient, weight_gradient;
  PassSeconds sum() const {
    PassSeconds all = forward;
    all += input_gradient;
    return all += weight_gradient;
  }
};

// Bandwidth and latency of a ring of `ranks` ranks, `stride` apart. Between nodes, all GPUs of the ring on a
// node send over their own links.
struct Ring {
  double bandwidth, latency;
};

Ring ring(const Cluster& cluster, int64_t ranks, int64_t stride) {
  const double node = cluster.bandwidth_node_gbs * kGiga, network = cluster.bandwidth_network_gbs * kGiga;
  if (ranks * stride <= cluster.gpus_per_node) return {node, cluster.latency_node_us * kMicro};
  const int64_t local = std::max<int64_t>(cluster.gpus_per_node / stride, 1);
  return {local > 1 ? std::min(node, to_double(local) * network) : network,
          cluster.latency_network_us * kMicro};
}

// Seconds of a reduce-scatter or all-gather of `bytes`.
double collective(const Cluster& cluster, double bytes, int64_t ranks, int64_t stride) {
  if (ranks == 1 || bytes == 0) return 0;
  const Ring r = ring(cluster, ranks, stride);
  return bytes * to_double(ranks - 1) / to_double(ranks) / r.bandwidth +
         std::log2(to_double(ranks)) * r.latency;
}

// Seconds of an all-to-all in which each expert rank sends `bytes` in equal parts. Traffic to other nodes
// uses the GPU's own link.
double all_to_all(const Cluster& cluster, double bytes, int64_t ranks) {
  if (ranks == 1) return 0;
  const int64_t local = std::min(ranks, cluster.gpus_per_node);
  const double share = bytes / to_double(ranks);
  const double inside = share * to_double(local - 1) / (cluster.bandwidth_node_gbs * kGiga),
               outside = share * to_double(ranks - local) / (cluster.bandwidth_network_gbs * kGiga);
  return std::max(inside, outside) +
         (ranks > local ? cluster.latency_network_us : cluster.latency_node_us) * kMicro;
}

class CostModel {
 public:
  CostModel(const Config& config, const Cluster& cluster)
      : config_(config),
        cluster_(cluster),
        layout_(layout_of(config)),
        w_(config),
        tokens_(to_double(config.train.micro_batch * config.train.sequence)),
        bounds_(layout_bounds(config, layout_)) {}

  std::vector<ChunkSeconds> chunks() const {
    const auto visible = visible_counts(config_), numbers = moe_layer_numbers(config_.model);
    std::vector<ChunkSeconds> all(bounds_.size() - 1);
    for (size_t c = 0; c < all.size(); ++c) {
      for (int64_t i = bounds_[c]; i < bounds_[c + 1]; ++i) add_layer(all[c], i, visible[i], numbers[i] > 0);
    }
    const ModelConfig& m = config_.model;
    const double d = to_double(m.hidden_size), table = to_double(m.vocab_size) * d;
    add_projection(all.back(), table);
    for (int64_t k = 0; k < m.num_nextn_predict_layers; ++k) {
      add_projection(all.back(), 2 * d * d);
      add_layer(all.back(), m.num_hidden_layers + k, visible[m.num_hidden_layers + k], /*moe=*/true);
      add_projection(all.back(), table);
    }
    return all;
  }

  PipelineCosts pipeline(const std::vector<ChunkSeconds>& chunks) const {
    PipelineCosts costs;
    const HistoryCosts history(config_);
    const double rows = tokens_ * to_double(config_.model.hidden_size) * w_.operand;
    for (size_t c = 0; c < chunks.size(); ++c) {
      costs.forward.push_back(chunks[c].forward.sum());
      costs.input_gradient.push_back(chunks[c].input_gradient.sum());
      costs.weight_gradient.push_back(chunks[c].weight_gradient.sum());
      if (c == 0) costs.gradients.push_back(0);
      if (c + 1 == chunks.size()) {
        costs.activations.push_back(0);
        continue;
      }
      const auto boundary = static_cast<int64_t>(c);
      const double both_ways = rows + history.crossing_mass_bytes(tokens_, bounds_, boundary);
      costs.activations.push_back(both_ways + history.crossing_bytes(tokens_, bounds_, boundary));
      costs.gradients.push_back(both_ways);  // of chunk c + 1
    }
    // For the multi-token prediction modules the last chunk exchanges the embedded tokens with the first.
    // With more chunks in between, they arrive before the other messages.
    if (chunks.size() == 2 && config_.model.num_nextn_predict_layers > 0) {
      costs.activations.front() += rows;
      costs.gradients.back() += rows;
    }
    const bool node = layout_.data * layout_.pipeline <= cluster_.gpus_per_node;
    costs.latency = (node ? cluster_.latency_node_us : cluster_.latency_network_us) * kMicro;
    costs.bandwidth = (node ? cluster_.bandwidth_node_gbs : cluster_.bandwidth_network_gbs) * kGiga;
    return costs;
  }

  // Seconds of a collective over data ranks with one element of `width` bytes per weight.
  double over_data_ranks(const WeightCount& weights, double width) const {
    return collective(cluster_, weights.common * width, layout_.data, 1) +
           collective(cluster_, weights.experts * width, expert_replicas(layout_), layout_.expert);
  }

  // Gradients are read twice (norm, update); master weights and two moments (Muon: one) are read and written;
  // weights written.
  double optimizer(const StageWeights& weights) const {
    const auto &common = weights.muon_common, &experts = weights.muon_experts;
    const double bytes = sharded_sum(layout_, weights.trained.common, weights.trained.experts) *
                             (8 * w_.accum + (w_.operand == w_.accum ? 0 : w_.operand)) -
                         sharded_sum(layout_, common.weights, experts.weights) * 2 * w_.accum;
    return memory_seconds(bytes) + matmul_seconds(sharded_sum(layout_, common.flops, experts.flops));
  }

 private:
  double matmul_seconds(double operations) const {
    return operations / (cluster_.teraflops * 1e12 * cluster_.efficiency);
  }
  double memory_seconds(double bytes) const {
    return cluster_.bandwidth_memory_gbs > 0 ? bytes / (cluster_.bandwidth_memory_gbs * kGiga) : 0;
  }

  void add_layer(ChunkSeconds& sum, int64_t i, int64_t visible, bool moe) const {
    const double width =
        to_double(router_kind(config_.router).history_width(config_.model.num_experts, config_.router));
    const double history = tokens_ * to_double(visible) * width * w_.router;
    double forward = 0, input_gradient = 0, weight_gradient = 0, parameters = 0, trained = 0;
    const auto on_device = [&](const CostItem& item, double weights) {
      return item.name == "experts" ? weights / to_double(layout_.expert) : weights;
    };
    for (const CostItem& item : layer_costs(config_, i, visible)) {
      forward += item.forward;
      input_gradient += item.input_gradient;
      weight_gradient += item.weight_gradient;
      parameters += on_device(item, item.parameters);
      trained += on_device(item, item.trained);
    }
    const double saved = layer_activation_bytes(config_, i, tokens_);
    const double slot = width > 0 && moe ? tokens_ * (width * w_.router + w_.accum) : 0;
    const double rows =
        tokens_ * to_double(config_.model.num_experts_per_tok * config_.model.hidden_size) * w_.operand;
    const double all_to_all_time = moe ? 2 * all_to_all(cluster_, rows, layout_.expert) : 0;
    const PassSeconds pass = {matmul_seconds(tokens_ * forward),
                              memory_seconds(2 * saved + parameters * w_.operand + history + slot),
                              all_to_all_time};
    sum.forward += pass;
    sum.input_gradient += {matmul_seconds(tokens_ * input_gradient),
                           memory_seconds(3 * saved + parameters * w_.operand), all_to_all_time};
    if (config_.train.recompute) sum.input_gradient += pass;
    sum.weight_gradient +=
        {matmul_seconds(tokens_ * weight_gradient), memory_seconds(2 * trained * w_.accum + history), 0};
  }

  // The output projection or that of a multi-token prediction module's inputs, with the norms before it.
  void add_projection(ChunkSeconds& sum, double weights) const {
    const double saved = 3 * tokens_ * to_double(config_.model.hidden_size) * w_.operand,
                 once = matmul_seconds(2 * tokens_ * weights);
    sum.forward += {once, memory_seconds(2 * saved + weights * w_.operand), 0};
    sum.input_gradient += {once, memory_seconds(3 * saved + weights * w_.operand), 0};
    if (config_.train.trains_all()) sum.weight_gradient += {once, memory_seconds(2 * weights * w_.accum), 0};
  }

  const Config& config_;
  const Cluster& cluster_;
  Layout layout_;
  ElementSizes w_;
  double tokens_;
  std::vector<int64_t> bounds_;
};

// Communication that is not overlapped: a layer's gradients are sent during the last micro-batch's backward
// pass of the layers before it, except those of the first layer.
double exposed_seconds(double seconds, double last_backward, int64_t layers) {
  const double one = 1 / to_double(std::max<int64_t>(layers, 1));
  return std::max(seconds * one, seconds - last_backward * (1 - one));
}

}  // namespace

Layout layout_of(const Config& config) {
  const ParallelConfig& p = config.parallel;
  return {.data = p.data, .pipeline = p.pipeline, .expert = p.expert, .chunks = p.chunks};
}

int64_t micro_batches_of(const Config& config) {
  return config.train.global_batch / (config.train.micro_batch * config.parallel.data);
}

Schedule schedule_of(const Config& config) {
  const ParallelConfig& p = config.parallel;
  return make_schedule(p.schedule, p.pipeline, p.chunks, micro_batches_of(config));
}

PipelineCosts pipeline_costs(const Config& config, const Cluster& cluster) {
  const CostModel cost_model(config, cluster);
  return cost_model.pipeline(cost_model.chunks());
}

std::vector<MemoryItem> planned_memory(const Config& config, const Schedule& schedule) {
  const Layout layout = layout_of(config);
  std::vector<double> in_flight;
  for (const auto held : peak_activations(schedule))
    in_flight.push_back(to_double(held) / to_double(layout.chunks));
  return StageMemory(config, layout).largest(in_flight);
}

Prediction predict(const Config& config, const Cluster& cluster) {
  const CostModel cost_model(config, cluster);
  const Layout layout = layout_of(config);
  const auto chunks = cost_model.chunks();
  const auto schedule = schedule_of(config);
  const auto simulation = simulate(schedule, cost_model.pipeline(chunks));
  const auto weights = stage_weights(config, layout);
  const auto stages = pipeline_stages(config, layout);
  const ElementSizes w(config);

  double done = 0, optimizer = 0, gather = 0;
  std::vector<double> reduction;
  for (int64_t rank = 0; rank < layout.pipeline; ++rank) {
    double backward = 0;
    for (size_t c = rank; c < chunks.size(); c += layout.pipeline)
      backward += chunks[c].input_gradient.sum() + chunks[c].weight_gradient.sum();
    reduction.push_back(exposed_seconds(cost_model.over_data_ranks(weights[rank].trained, w.accum), backward,
                                        std::ranges::count(stages, rank)));
    done = std::max(done, simulation.spans[rank].back().end + reduction.back());
    optimizer = std::max(optimizer, cost_model.optimizer(weights[rank]));
    gather = std::max(gather, cost_model.over_data_ranks(weights[rank].trained, w.operand));
  }

  const auto busiest = std::ranges::max_element(simulation.busy) - simulation.busy.begin();
  PassSeconds passes;
  for (size_t c = busiest; c < chunks.size(); c += layout.pipeline) passes += chunks[c].sum();
  const double m = to_double(micro_batches_of(config));
  Prediction out;
  out.seconds = done + optimizer + gather;
  out.time = {{"matrix products", m * passes.matmul},
              {"activations and weights in memory", m * passes.memory},
              {"rows between expert ranks", m * passes.all_to_all},
              {"waiting for other stages", done - reduction[busiest] - simulation.busy[busiest]},
              {"gradients over data ranks, not hidden", reduction[busiest]},
              {"optimizer", optimizer},
              {"weights over data ranks", gather}};
  out.memory = planned_memory(config, schedule);
  out.traffic = device_traffic(config, layout);
  for (int64_t rank = 0; rank < layout.pipeline; ++rank)
    out.bubble += simulation.bubble(rank) / to_double(layout.pipeline);
  out.ideal_bubble =
      ideal_bubble(config.parallel.schedule, layout.pipeline, layout.chunks, micro_batches_of(config));
  const double tokens = to_double(config.train.global_batch * config.train.sequence);
  out.tokens_per_second = tokens / out.seconds;
  out.mfu = training_flops_per_token(config) * out.tokens_per_second /
            (to_double(layout.data * layout.pipeline) * cluster.teraflops * 1e12);
  return out;
}

}  // namespace hero
