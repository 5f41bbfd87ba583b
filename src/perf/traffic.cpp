#include "perf/traffic.h"

#include <algorithm>

#include "config/mtp_layers.h"
#include "perf/stage_memory.h"

namespace hero {

std::vector<MemoryItem> device_traffic(const Config& config, const Layout& layout) {
  const ModelConfig& m = config.model;
  const auto to_double = [](int64_t n) { return static_cast<double>(n); };
  const ElementSizes w(config);
  const auto share = [&](int64_t ranks) { return to_double(ranks - 1) / to_double(ranks); };
  const double tokens = to_double(config.train.global_batch * config.train.sequence) / to_double(layout.data);

  std::vector<double> moe(layout.pipeline, 0);
  const auto numbers = moe_layer_numbers_with_modules(m), stage_of = pipeline_stages(config, layout),
             bounds = layout_bounds(config, layout);
  for (int64_t i = 0; i < std::ssize(stage_of); ++i) moe[stage_of[i]] += numbers[i] > 0;
  const auto stages = stage_weights(config, layout);
  const auto reduced = [&](double width) {
    double max_bytes = 0;
    for (const StageWeights& weights : stages) {
      const WeightCount& trained = weights.trained;
      max_bytes = std::max(max_bytes, width * (trained.common * share(layout.data) +
                                               trained.experts * share(expert_replicas(layout))));
    }
    return max_bytes;
  };

  const double row = to_double(m.hidden_size) * w.operand,
               rows = tokens * to_double(m.num_experts_per_tok) * row,
               exchanges = config.train.recompute ? 6 : 4;  // of a layer's rows
  const HistoryCosts costs(config);
  std::vector<double> activations(layout.pipeline, 0), history(layout.pipeline, 0);
  for (int64_t chunk = 0; chunk + 1 < layout.pipeline * layout.chunks && layout.pipeline > 1; ++chunk) {
    const double bytes = tokens * row + costs.crossing_mass_bytes(tokens, bounds, chunk);
    activations[chunk % layout.pipeline] += bytes;
    activations[(chunk + 1) % layout.pipeline] += bytes;  // gradients
    history[chunk % layout.pipeline] += costs.crossing_bytes(tokens, bounds, chunk);
  }
  const bool sends_embeddings = layout.pipeline > 1 && m.num_nextn_predict_layers > 0;
  return {{"gradients over data ranks", reduced(w.accum)},
          {"weights over data ranks", reduced(w.operand)},
          {"activations between stages", std::ranges::max(activations)},
          {"embeddings between stages", sends_embeddings ? tokens * row : 0},
          {"history between stages", std::ranges::max(history)},
          {"rows between expert ranks", exchanges * std::ranges::max(moe) * rows * share(layout.expert)}};
}

}  // namespace hero
