#include "cost/traffic.h"

#include <algorithm>

#include "model/counts.h"

namespace hero {

std::vector<MemoryPart> device_traffic(const Config& config, const Layout& layout) {
  const ModelConfig& m = config.model;
  const auto number = [](int64_t n) { return static_cast<double>(n); };
  const double operand = config.train.dtype == "bf16" ? 2 : config.train.dtype == "fp64" ? 8 : 4;
  const double wide = config.train.dtype == "fp64" ? 8 : 4;
  const auto share = [&](int64_t ranks) { return number(ranks - 1) / number(ranks); };
  const double tokens = number(config.train.global_batch * config.train.sequence) / number(layout.data);

  const auto stage_of = pipeline_stages(m, layout.pipeline), visible = visible_counts(config);
  std::vector<double> parameters(layout.pipeline, 0), moe(layout.pipeline, 0);
  for (int64_t i = 0; i < m.num_hidden_layers; ++i) {
    for (const Part& part : layer_parts(config, i, visible[i]))
      parameters[stage_of[i]] +=
          part.name == "experts" ? part.parameters / number(layout.expert) : part.parameters;
    moe[stage_of[i]] += moe_numbers(m)[i] > 0;
  }
  parameters.front() += number(m.vocab_size * m.hidden_size);
  if (!m.tie_word_embeddings) parameters.back() += number(m.vocab_size * m.hidden_size);

  const bool pipeline = layout.pipeline > 1;
  double history = 0;
  if (pipeline && config.router.history == "global") {
    for (int64_t s = 0; s + 1 < layout.pipeline; ++s)
      history = std::max(history, history_bytes(config, tokens, layout.pipeline, s));
  }
  const double rows = tokens * number(m.num_experts_per_tok * m.hidden_size) * operand;
  return {{"gradients over data ranks",
           *std::max_element(parameters.begin(), parameters.end()) * wide * share(layout.data)},
          {"weights over data ranks",
           *std::max_element(parameters.begin(), parameters.end()) * operand * share(layout.data)},
          {"activations between stages", pipeline ? 2 * tokens * number(m.hidden_size) * operand : 0},
          {"history between stages", history},
          {"rows between expert ranks",
           4 * *std::max_element(moe.begin(), moe.end()) * rows * share(layout.expert)}};
}

}  // namespace hero
