#include "perf/stage_memory.h"

#include <algorithm>

#include "model/counts.h"

namespace hero {
namespace {

void add_common(StageWeights& sum, double weights, double trained) {
  sum.all.common += weights;
  sum.trained.common += trained;
}

}  // namespace

std::vector<StageWeights> stage_weights(const Config& config, const Layout& layout) {
  const ModelConfig& m = config.model;
  const auto visible = visible_counts(config), stage_of = pipeline_stages(config, layout);
  std::vector<StageWeights> sums(layout.pipeline);
  for (int64_t i = 0; i < std::ssize(stage_of); ++i) {
    StageWeights& sum = sums[stage_of[i]];
    for (const CostItem& item : layer_costs(config, i, visible[i])) {
      if (item.name == "experts") {
        sum.all.experts += item.parameters / to_double(layout.expert);
        sum.trained.experts += item.trained / to_double(layout.expert);
      } else {
        add_common(sum, item.parameters, item.trained);
      }
    }
    sum.muon_common += muon_layer_cost(config, i, visible[i]);
    const MuonCost experts = muon_expert_cost(config, i);
    sum.muon_experts +=
        {experts.weights / to_double(layout.expert), experts.flops / to_double(layout.expert)};
  }
  const double table = to_double(m.vocab_size * m.hidden_size),
               head = to_double(m.hidden_size) + (m.tie_word_embeddings && layout.pipeline == 1 ? 0 : table);
  add_common(sums.front(), table, config.train.trains_all() ? table : 0);
  for (const CostItem& item : mtp_costs(config)) add_common(sums.back(), item.parameters, item.trained);
  add_common(sums.back(), head, config.train.trains_all() ? head : 0);
  return sums;
}

int64_t expert_replicas(const Layout& layout) { return std::max<int64_t>(layout.data / layout.expert, 1); }

double sharded_sum(const Layout& layout, double common, double experts) {
  return common / to_double(layout.data) + experts / to_double(expert_replicas(layout));
}

StageMemory::StageMemory(const Config& config, const Layout& layout)
    : config_(config),
      layout_(layout),
      stages_(pipeline_stages(config, layout)),
      weights_(stage_weights(config, layout)),
      history_(config) {}

std::vector<MemoryItem> StageMemory::items(int64_t stage, double in_flight) const {
  const ModelConfig& m = config_.model;
  const ElementSizes w(config_);
  const double tokens = to_double(config_.train.micro_batch * config_.train.sequence);
  const double micro_batches =
      to_double(config_.train.global_batch) / to_double(config_.train.micro_batch * layout_.data);
  double layers = 0, largest = 0;
  for (int64_t i = 0; i < std::ssize(stages_); ++i) {
    if (stages_[i] != stage) continue;
    layers += saved_layer_bytes(config_, i, tokens);
    if (config_.train.recompute) largest = std::max(largest, layer_activation_bytes(config_, i, tokens));
  }
  const StageWeights& weights = weights_[stage];
  const double sharded = sharded_sum(layout_, weights.trained.common, weights.trained.experts),
               muon = sharded_sum(layout_, weights.muon_common.weights, weights.muon_experts.weights),
               frozen = weights.all.sum() - weights.trained.sum();  // not sharded
  const bool in_memory = config_.optim.offload_folder.empty(), rounded = w.operand != w.accum;
  const double masters = rounded ? (in_memory ? sharded + frozen : 0) : (layout_.data > 1 ? muon : 0);
  const double moments = 2 * sharded - muon;  // Muon has one
  // The output projection's gradient exists twice during the loss's backward pass. The modules' embedded
  // tokens come from the first stage.
  const int64_t modules = m.num_nextn_predict_layers;
  double head = 0;
  if (stage == layout_.pipeline - 1) {
    head = head_activation_bytes(config_, tokens) +
           to_double(modules) * mtp_activation_bytes(config_, tokens) + head_gradient_bytes(config_);
    if (modules > 0 && stage > 0) head += tokens * to_double(m.hidden_size) * w.operand;
  }
  const double gradients = weights.trained.sum() * w.accum, activations = in_flight * layers + largest + head;
  // With a single micro-batch, gradients reuse the memory of freed activations.
  const double shared = micro_batches > 1 ? 0 : std::min(activations, gradients);
  return {{"weights", weights.all.sum() * w.operand},
          {"master weights", masters * w.accum},
          {"gradients", gradients},
          {"optimizer moments", in_memory ? moments * w.accum : 0},
          {"activations", activations},
          {"gradients in place of activations", -shared},
          {"routing history", in_flight * history_.bytes(tokens, layout_, stage)}};
}

std::vector<MemoryItem> StageMemory::largest(const std::vector<double>& in_flight) const {
  std::vector<MemoryItem> largest_stage;
  for (int64_t stage = 0; stage < layout_.pipeline; ++stage) {
    auto items = this->items(stage, in_flight[stage]);
    if (total(items) > total(largest_stage)) largest_stage = std::move(items);
  }
  return largest_stage;
}

std::vector<MemoryItem> device_memory(const Config& config, const Layout& layout) {
  return StageMemory(config, layout)
      .largest(std::vector<double>(layout.pipeline, to_double(layout.in_flight)));
}

}  // namespace hero
