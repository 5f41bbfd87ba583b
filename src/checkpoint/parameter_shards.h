#pragma once
// Converts parameter shards, which depend on the parallel layout, to and from checkpoint tensors, which do
// not.
#include <filesystem>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/parameters.h"
#include "optim/parameter_shard.h"

namespace hero {

/// Adds the shards' values and moments to a checkpoint: parameter parts under their names on disk, moments as
/// exp_avg.NAME and exp_avg_sq.NAME (Muon has only the first). If a shard contains only a slice of a part,
/// its values become a ModelSlice and its moments tensors exp_avg.NAME[begin,end).
void add_parameter_shards(const Parameters& parameters, const std::vector<ParameterShard>& shards,
                          CheckpointContents& contents);

/// Reads moments, and values that do not alias the parameters, from a checkpoint of any layout. UserError as
/// RangeReader.
void read_parameter_shards(const std::filesystem::path& checkpoint, const Parameters& parameters,
                           const std::vector<ParameterShard>& shards);

}  // namespace hero
