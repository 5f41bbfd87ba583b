#include "model/model_chunk.h"

#include <algorithm>

namespace hero {

ModelShard pipeline_shard(const Config& config, int64_t rank, int64_t ranks) {
  const int64_t chunks = ranks * config.parallel.chunks;
  const auto bounds =
      ranks == 1 ? std::vector<int64_t>{0, config.model.num_hidden_layers} : chunk_bounds(config, chunks);
  const auto numbers = moe_layer_numbers(config.model);
  ModelShard shard{.chunks = {}, .experts = config.model.num_experts};
  int64_t next_moe = 1;
  for (int64_t c = 0; c + 1 < static_cast<int64_t>(bounds.size()); ++c) {
    ModelChunk chunk{.index = c, .first = bounds[c], .last = bounds[c + 1], .first_moe = next_moe};
    next_moe += std::count_if(numbers.begin() + chunk.first, numbers.begin() + chunk.last,
                              [](int64_t l) { return l > 0; });
    chunk.is_first = c == 0;
    chunk.is_last = chunk.last == config.model.num_hidden_layers;
    if (chunk.is_last) next_moe += config.model.num_nextn_predict_layers;
    chunk.last_moe = next_moe;
    if (c % ranks == rank) shard.chunks.push_back(chunk);
  }
  return shard;
}

ModelShard whole_model(const Config& config) { return pipeline_shard(config, 0, 1); }

}  // namespace hero
