#include "perf/traffic.h"

#include <algorithm>

namespace hero {

std::vector<MemoryPart> device_traffic(const Config& config, const Layout& layout) {
  const ModelConfig& m = config.model;
  const auto number = [](int64_t n) { return static_cast<double>(n); };
  const Widths w(config);
  const auto share = [&](int64_t ranks) { return number(ranks - 1) / number(ranks); };
  const double tokens = number(config.train.global_batch * config.train.sequence) / number(layout.data);

  std::vector<double> moe(layout.pipeline, 0);
  const auto numbers = moe_numbers(m), stage_of = pipeline_stages(config, layout),
             bounds = layout_bounds(config, layout);
  for (int64_t i = 0; i < m.num_hidden_layers; ++i) moe[stage_of[i]] += numbers[i] > 0;
  const auto reduced = [&](double width) {
    double most = 0;
    for (const StageWeights& weights : stage_weights(config, layout)) {
      most = std::max(most, width * (weights.common * share(layout.data) +
                                     weights.experts * share(expert_replicas(layout))));
    }
    return most;
  };

  std::vector<double> history(layout.pipeline, 0);  // from each stage to the next
  for (int64_t chunk = 0; chunk + 1 < layout.pipeline * layout.chunks && layout.pipeline > 1; ++chunk)
    history[chunk % layout.pipeline] += crossing_history_bytes(config, tokens, bounds, chunk);
  const double crossings = layout.pipeline > 1 ? 2 * number(layout.chunks) : 0;
  const double rows = tokens * number(m.num_experts_per_tok * m.hidden_size) * w.operand;
  return {{"gradients over data ranks", reduced(w.wide)},
          {"weights over data ranks", reduced(w.operand)},
          {"activations between stages", crossings * tokens * number(m.hidden_size) * w.operand},
          {"history between stages", std::ranges::max(history)},
          {"rows between expert ranks", 4 * std::ranges::max(moe) * rows * share(layout.expert)}};
}

}  // namespace hero
