#include "perf/prediction.h"

#include <algorithm>
#include <cmath>

#include "model/counts.h"
#include "perf/traffic.h"

namespace hero {
namespace {

double number(int64_t n) { return static_cast<double>(n); }

constexpr double kGiga = 1e9, kMicro = 1e-6;

// Of one pass of a chunk over a micro-batch.
struct PassSeconds {
  double products = 0, memory = 0, exchange = 0;
  double sum() const { return products + memory + exchange; }
  PassSeconds& operator+=(const PassSeconds& other) {
    products += other.products;
    memory += other.memory;
    exchange += other.exchange;
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

// How fast each of `ranks` sends to the others, with `stride - 1` foreign ranks between two. Of what a ring
// carries from node to node, each of its GPUs there sends a part over its own link.
struct Ring {
  double bandwidth, latency;
};

Ring ring(const Cluster& cluster, int64_t ranks, int64_t stride) {
  const double node = cluster.bandwidth_node_gbs * kGiga, network = cluster.bandwidth_network_gbs * kGiga;
  if (ranks * stride <= cluster.gpus_per_node) return {node, cluster.latency_node_us * kMicro};
  const int64_t local = std::max<int64_t>(cluster.gpus_per_node / stride, 1);
  return {local > 1 ? std::min(node, number(local) * network) : network, cluster.latency_network_us * kMicro};
}

// Reduce-scatter or all-gather of `bytes`.
double collective(const Cluster& cluster, double bytes, int64_t ranks, int64_t stride) {
  if (ranks == 1 || bytes == 0) return 0;
  const Ring r = ring(cluster, ranks, stride);
  return bytes * number(ranks - 1) / number(ranks) / r.bandwidth + std::log2(number(ranks)) * r.latency;
}

// Rows of `bytes` from every expert rank to all of them in equal parts. Those of other nodes pass through the
// GPU's own link.
double all_to_all(const Cluster& cluster, double bytes, int64_t ranks) {
  if (ranks == 1) return 0;
  const int64_t local = std::min(ranks, cluster.gpus_per_node);
  const double part = bytes / number(ranks);
  const double inside = part * number(local - 1) / (cluster.bandwidth_node_gbs * kGiga),
               outside = part * number(ranks - local) / (cluster.bandwidth_network_gbs * kGiga);
  return std::max(inside, outside) +
         (ranks > local ? cluster.latency_network_us : cluster.latency_node_us) * kMicro;
}

class Pricing {
 public:
  Pricing(const Config& config, const Cluster& cluster)
      : config_(config),
        cluster_(cluster),
        layout_(layout_of(config)),
        w_(config),
        tokens_(number(config.train.micro_batch * config.train.sequence)),
        bounds_(layout_bounds(config, layout_)) {}

  std::vector<ChunkSeconds> chunks() const {
    const auto visible = visible_counts(config_), numbers = moe_numbers(config_.model);
    std::vector<ChunkSeconds> all(bounds_.size() - 1);
    for (size_t c = 0; c < all.size(); ++c) {
      for (int64_t i = bounds_[c]; i < bounds_[c + 1]; ++i) add_layer(all[c], i, visible[i], numbers[i] > 0);
    }
    add_head(all.back());
    return all;
  }

  PipelineCosts pipeline(const std::vector<ChunkSeconds>& chunks) const {
    PipelineCosts costs;
    const double rows = tokens_ * number(config_.model.hidden_size) * w_.operand;
    for (size_t c = 0; c < chunks.size(); ++c) {
      costs.forward.push_back(chunks[c].forward.sum());
      costs.input_gradient.push_back(chunks[c].input_gradient.sum());
      costs.weight_gradient.push_back(chunks[c].weight_gradient.sum());
      const bool last = c + 1 == chunks.size();
      costs.activations.push_back(
          last ? 0 : rows + crossing_history_bytes(config_, tokens_, bounds_, static_cast<int64_t>(c)));
      costs.gradients.push_back(c == 0 ? 0 : rows);
    }
    const bool node = layout_.data * layout_.pipeline <= cluster_.gpus_per_node;
    costs.latency = (node ? cluster_.latency_node_us : cluster_.latency_network_us) * kMicro;
    costs.bandwidth = (node ? cluster_.bandwidth_node_gbs : cluster_.bandwidth_network_gbs) * kGiga;
    return costs;
  }

  // Of numbers `width` bytes wide, one for every weight of the stage.
  double over_data_ranks(const StageWeights& weights, double width) const {
    return collective(cluster_, weights.common * width, layout_.data, 1) +
           collective(cluster_, weights.experts * width, expert_replicas(layout_), layout_.expert);
  }

  // Gradients for their norm and for the update, values and two moments both ways, the leaf.
  double optimizer(const StageWeights& weights) const {
    const double own =
        weights.common / number(layout_.data) + weights.experts / number(expert_replicas(layout_));
    return in_memory(own * (8 * w_.wide + (w_.operand == w_.wide ? 0 : w_.operand)));
  }

 private:
  double products(double operations) const {
    return operations / (cluster_.teraflops * 1e12 * cluster_.efficiency);
  }
  double in_memory(double bytes) const {
    return cluster_.bandwidth_memory_gbs > 0 ? bytes / (cluster_.bandwidth_memory_gbs * kGiga) : 0;
  }

  void add_layer(ChunkSeconds& sum, int64_t i, int64_t visible, bool moe) const {
    const double experts = number(config_.model.num_experts),
                 history = tokens_ * number(visible) * experts * w_.router;
    double forward = 0, backward = 0, weight = 0, parameters = 0;
    for (const Part& part : layer_parts(config_, i, visible)) {
      forward += part.forward;
      backward += part.backward;
      // A weight's gradient is a product as large as its forward one; attention scores have no weights.
      weight += part.parameters > 0 ? part.forward : 0;
      parameters += part.name == "experts" ? part.parameters / number(layout_.expert) : part.parameters;
    }
    const double kept = layer_activation_bytes(config_, i, tokens_);
    const double slot = config_.router.kind == "hero" && moe ? tokens_ * (experts * w_.router + w_.wide) : 0;
    const double rows =
        tokens_ * number(config_.model.num_experts_per_tok * config_.model.hidden_size) * w_.operand;
    const double exchange = moe ? 2 * all_to_all(cluster_, rows, layout_.expert) : 0;
    const PassSeconds pass = {products(tokens_ * forward),
                              in_memory(2 * kept + parameters * w_.operand + history + slot), exchange};
    sum.forward += pass;
    sum.input_gradient +=
        {products(tokens_ * (backward - weight)), in_memory(3 * kept + parameters * w_.operand), exchange};
    if (config_.train.recompute) sum.input_gradient += pass;
    sum.weight_gradient += {products(tokens_ * weight), in_memory(2 * parameters * w_.wide + history), 0};
  }

  void add_head(ChunkSeconds& sum) const {
    const double d = number(config_.model.hidden_size), table = number(config_.model.vocab_size) * d;
    const double kept = 3 * tokens_ * d * w_.operand, once = products(2 * tokens_ * table);
    sum.forward += {once, in_memory(2 * kept + table * w_.operand), 0};
    sum.input_gradient += {once, in_memory(3 * kept + table * w_.operand), 0};
    sum.weight_gradient += {once, in_memory(2 * table * w_.wide), 0};
  }

  const Config& config_;
  const Cluster& cluster_;
  Layout layout_;
  Widths w_;
  double tokens_;
  std::vector<int64_t> bounds_;
};

// A layer's gradients leave while the last micro-batch's backward pass goes on to the layers before it; those
// of the last layer cannot hide.
double exposed(double seconds, double last_backward, int64_t layers) {
  const double one = 1 / number(std::max<int64_t>(layers, 1));
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
  const Pricing pricing(config, cluster);
  return pricing.pipeline(pricing.chunks());
}

std::vector<MemoryPart> planned_memory(const Config& config, const Schedule& schedule) {
  const Layout layout = layout_of(config);
  const auto held = held_activations(schedule);
  std::vector<MemoryPart> most;
  for (int64_t stage = 0; stage < layout.pipeline; ++stage) {
    auto parts = stage_memory(config, layout, stage, number(held[stage]) / number(layout.chunks));
    if (total(parts) > total(most)) most = std::move(parts);
  }
  return most;
}

Prediction predict(const Config& config, const Cluster& cluster) {
  const Pricing pricing(config, cluster);
  const Layout layout = layout_of(config);
  const auto chunks = pricing.chunks();
  const auto schedule = schedule_of(config);
  const auto simulation = simulate(schedule, pricing.pipeline(chunks));
  const auto weights = stage_weights(config, layout);
  const auto stages = pipeline_stages(config, layout);
  const Widths w(config);

  double done = 0, optimizer = 0, gather = 0;
  std::vector<double> reduction;
  for (int64_t rank = 0; rank < layout.pipeline; ++rank) {
    double backward = 0;
    for (size_t c = rank; c < chunks.size(); c += layout.pipeline)
      backward += chunks[c].input_gradient.sum() + chunks[c].weight_gradient.sum();
    reduction.push_back(
        exposed(pricing.over_data_ranks(weights[rank], w.wide), backward, std::ranges::count(stages, rank)));
    done = std::max(done, simulation.spans[rank].back().end + reduction.back());
    optimizer = std::max(optimizer, pricing.optimizer(weights[rank]));
    gather = std::max(gather, pricing.over_data_ranks(weights[rank], w.operand));
  }

  const auto busiest = std::ranges::max_element(simulation.busy) - simulation.busy.begin();
  PassSeconds own;
  for (size_t c = busiest; c < chunks.size(); c += layout.pipeline) own += chunks[c].sum();
  const double m = number(micro_batches_of(config));
  Prediction out;
  out.seconds = done + optimizer + gather;
  out.parts = {{"matrix products", m * own.products},
               {"activations and weights in memory", m * own.memory},
               {"rows between expert ranks", m * own.exchange},
               {"waiting for other stages", done - reduction[busiest] - simulation.busy[busiest]},
               {"gradients over data ranks, not hidden", reduction[busiest]},
               {"optimizer", optimizer},
               {"weights over data ranks", gather}};
  out.memory = planned_memory(config, schedule);
  out.traffic = device_traffic(config, layout);
  for (int64_t rank = 0; rank < layout.pipeline; ++rank)
    out.bubble += simulation.bubble(rank) / number(layout.pipeline);
  out.ideal_bubble =
      ideal_bubble(config.parallel.schedule, layout.pipeline, layout.chunks, micro_batches_of(config));
  const double tokens = number(config.train.global_batch * config.train.sequence);
  out.tokens_per_second = tokens / out.seconds;
  out.mfu = training_flops_per_token(config) * out.tokens_per_second /
            (number(layout.data * layout.pipeline) * cluster.teraflops * 1e12);
  return out;
}

}  // namespace hero
