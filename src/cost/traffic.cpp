#include "cost/traffic.h"

#include <algorithm>

namespace hero {

std::vector<MemoryPart> device_traffic(const Config& config, const Layout& layout) {
  const ModelConfig& m = config.model;
  const auto number = [](int64_t n) { return static_cast<double>(n); };
  const Widths w(config);
  const auto share = [&](int64_t ranks) { return number(ranks - 1) / number(ranks); };
  const double tokens = number(config.train.global_batch * config.train.sequence) / number(layout.data);

  std::vector<double> moe(layout.pipeline, 0);
  const auto numbers = moe_numbers(m), stage_of = pipeline_stages(m, layout.pipeline);
  for (int64_t i = 0; i < m.num_hidden_layers; ++i) moe[stage_of[i]] += numbers[i] > 0;
  const double parameters = std::ranges::max(stage_parameters(config, layout));

  const bool pipeline = layout.pipeline > 1;
  double history = 0;
  if (pipeline && config.router.history == "global") {
    for (int64_t s = 0; s + 1 < layout.pipeline; ++s)
      history = std::max(history, history_bytes(config, tokens, layout.pipeline, s));
  }
  const double rows = tokens * number(m.num_experts_per_tok * m.hidden_size) * w.operand;
  return {{"gradients over data ranks", parameters * w.wide * share(layout.data)},
          {"weights over data ranks", parameters * w.operand * share(layout.data)},
          {"activations between stages", pipeline ? 2 * tokens * number(m.hidden_size) * w.operand : 0},
          {"history between stages", history},
          {"rows between expert ranks", 4 * std::ranges::max(moe) * rows * share(layout.expert)}};
}

}  // namespace hero
