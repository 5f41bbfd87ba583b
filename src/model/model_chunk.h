#pragma once
// The shard of a model that one process holds: chunks of decoder layers and a subset of their experts.
#include <vector>

#include "config/config.h"

namespace hero {

class Group;

/// A pipeline chunk (Megatron: virtual pipeline stage): decoder layers [first, last), of which the MoE layers
/// are [first_moe, last_moe), counted from 1. The last chunk also has the multi-token prediction modules,
/// whose MoE layers are its last.
struct ModelChunk {
  int64_t index = 0;  ///< among all chunks of the model
  int64_t first = 0, last = 0;
  int64_t first_moe = 1, last_moe = 1;
  bool is_first = true;  ///< has the embedding
  bool is_last = true;   ///< has the final norm and the output projection
};

struct ModelShard {
  std::vector<ModelChunk> chunks;
  int64_t first_expert = 0, experts = 0;
  const Group* expert_group = nullptr;  ///< expert-parallel ranks; null: no expert parallelism
};

/// The whole model as one shard.
ModelShard whole_model(const Config& config);

/// Splits the model into `ranks` * parallel.chunks chunks and returns those of pipeline rank `rank`: chunks c
/// with c % ranks == rank.
ModelShard pipeline_shard(const Config& config, int64_t rank, int64_t ranks);

}  // namespace hero
