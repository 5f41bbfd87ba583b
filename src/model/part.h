#pragma once
// What of a model a process holds: chunks of its decoder layers, and of their experts a share.
#include <vector>

#include "config/config.h"

namespace hero {

class Group;

/// Decoder layers [first, last), and the MoE layers among them [first_moe, last_moe), counted from 1.
struct Chunk {
  int64_t number = 0;  ///< in the whole model
  int64_t first = 0, last = 0;
  int64_t first_moe = 1, last_moe = 1;
  bool begins = true;  ///< embeds tokens
  bool ends = true;    ///< has the final norm and the output projection
};

struct ModelPart {
  std::vector<Chunk> chunks;
  int64_t first_expert = 0, experts = 0;
  const Group* expert_group = nullptr;  ///< ranks that hold the other experts; null: none do
};

/// All of it.
ModelPart whole_model(const Config& config);

/// The model split into `ranks` * parallel.chunks chunks: those of pipeline rank `rank`, c % ranks == rank.
ModelPart pipeline_part(const Config& config, int64_t rank, int64_t ranks);

}  // namespace hero
