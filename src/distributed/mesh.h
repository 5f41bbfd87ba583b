#pragma once
// The device mesh: rank = pipeline rank * data ranks + data rank. Consecutive data ranks form an
// expert-parallel group, which keeps expert traffic within a machine.
#include <cstdint>
#include <vector>

#include "config/config.h"

namespace hero {

struct Mesh {
  int64_t data = 1, pipeline = 1, expert = 1;  ///< sizes; expert divides data
  int64_t rank = 0;

  int64_t size() const { return data * pipeline; }
  int64_t data_rank() const { return rank % data; }
  int64_t pipeline_rank() const { return rank / data; }
  int64_t expert_rank() const { return rank % data % expert; }

  /// World ranks of this process's groups, ascending: data parallel (same stage); expert parallel (same
  /// stage, experts sharded); replicas of the same experts; pipeline parallel (all stages, same part of the
  /// batch).
  std::vector<int64_t> data_ranks() const;
  std::vector<int64_t> expert_ranks() const;
  std::vector<int64_t> replica_ranks() const;
  std::vector<int64_t> pipeline_ranks() const;
};

/// The mesh of this configuration for world size `size`. UserError naming the key that does not fit.
Mesh make_mesh(const Config& config, int64_t rank, int64_t size);

}  // namespace hero
