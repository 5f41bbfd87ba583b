#include "checkpoint/parameter_shards.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "hf/ranges.h"

namespace hero {
namespace {

// The elements of a parameter part that are in a shard.
struct PartSlice {
  const ParameterShard& shard;
  const ParameterPart& part;
  Range range;  // of the part's elements
  bool whole;

  // Selects the slice from the shard's values or moments; in the part's shape if it is the whole part.
  at::Tensor select(const at::Tensor& flat) const {
    const int64_t first = part.offset - shard.begin;
    const auto elements = flat.slice(0, first + range.begin, first + range.end);
    return whole ? elements.view(part.shape) : elements;
  }
};

template <typename Visit>
void for_each_slice(const Parameters& parameters, const std::vector<ParameterShard>& shards, Visit&& visit) {
  for (const ParameterShard& shard : shards) {
    for (const ParameterPart& part : parameters.all()[shard.parameter].parts) {
      const int64_t size =
          std::accumulate(part.shape.begin(), part.shape.end(), int64_t{1}, std::multiplies<>());
      const Range range{std::max<int64_t>(shard.begin - part.offset, 0),
                        std::min(shard.end - part.offset, size)};
      if (range.begin < range.end) visit(PartSlice{shard, part, range, range == Range{0, size}});
    }
  }
}

}  // namespace

void add_parameter_shards(const Parameters& parameters, const std::vector<ParameterShard>& shards,
                          CheckpointContents& contents) {
  for_each_slice(parameters, shards, [&](const PartSlice& slice) {
    const auto& [shard, part, range, whole] = slice;
    if (whole) {
      contents.model.emplace_back(part.name, slice.select(shard.values));
    } else {
      contents.model_slices.push_back({part.name, part.shape, range.begin, slice.select(shard.values)});
    }
    if (!shard.exp_avg.defined()) return;
    const std::string name = whole ? part.name : slice_name(part.name, range);
    contents.optimizer.emplace_back("exp_avg." + name, slice.select(shard.exp_avg));
    if (shard.exp_avg_sq.defined())
      contents.optimizer.emplace_back("exp_avg_sq." + name, slice.select(shard.exp_avg_sq));
  });
}

void read_parameter_shards(const std::filesystem::path& checkpoint, const Parameters& parameters,
                           const std::vector<ParameterShard>& shards) {
  const RangeReader model(checkpoint, "model"), optimizer(checkpoint, "optimizer");
  for_each_slice(parameters, shards, [&](const PartSlice& slice) {
    const auto& [shard, part, range, whole] = slice;
    const auto& own = parameters.all()[shard.parameter].values;
    if (!own.defined() || !shard.values.is_alias_of(own))
      model.read(part.name, part.shape, range.begin, slice.select(shard.values));
    if (!shard.exp_avg.defined()) return;
    optimizer.read("exp_avg." + part.name, part.shape, range.begin, slice.select(shard.exp_avg));
    if (shard.exp_avg_sq.defined())
      optimizer.read("exp_avg_sq." + part.name, part.shape, range.begin, slice.select(shard.exp_avg_sq));
  });
}

}  // namespace hero
