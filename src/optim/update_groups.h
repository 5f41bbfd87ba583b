#pragma once
// How each weight is updated: by AdamW or Muon, with which factor of the learning rate and which weight
// decay.
#include <compare>
#include <vector>

#include "config/config.h"
#include "model/parameters.h"
#include "optim/parameter_shard.h"

namespace hero {

struct UpdateRates {
  double lr = 1;  ///< factor of the learning rate
  double weight_decay = 0;
  auto operator<=>(const UpdateRates&) const = default;
};

/// Rates of a parameter's weights of this component.
UpdateRates update_rates(const OptimConfig& config, const Parameter& parameter, Component component);

/// Whether Muon updates the parameter: with optim.kind = muon its parts are hidden matrices, or with
/// optim.muon_router those of a router.
bool uses_muon(const OptimConfig& config, const Parameter& parameter);

/// Elements of a shard.
struct ShardRange {
  size_t shard;  ///< index
  int64_t begin, end;
};

/// Weights that AdamW updates with the same rates.
struct AdamWGroup {
  UpdateRates rates;
  std::vector<ShardRange> ranges;
};

/// All elements of the shards that AdamW updates.
std::vector<AdamWGroup> adamw_groups(const OptimConfig& config, const Parameters& parameters,
                                     const std::vector<ParameterShard>& shards);

/// `count` matrices [rows, columns] of a shard, which Muon updates: one after the other, or one that consists
/// of columns of a matrix with rows of `stride` elements.
struct MuonBatch {
  size_t shard;   ///< index
  int64_t begin;  ///< element of the shard
  int64_t count, rows, columns, stride;
  UpdateRates rates;

  /// The matrices of a flat tensor with the shard's elements: [count, rows, columns].
  at::Tensor view_of(const at::Tensor& flat) const;
};

/// All matrices that Muon updates. Their shards must contain whole parts of a parameter.
std::vector<MuonBatch> muon_batches(const OptimConfig& config, const Parameters& parameters,
                                    const std::vector<ParameterShard>& shards);

}  // namespace hero
