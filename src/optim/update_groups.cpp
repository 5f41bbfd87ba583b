#include "optim/update_groups.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

namespace hero {
namespace {

// Elements per batch: large enough to keep all threads busy, small enough for the copies that Muon makes.
constexpr int64_t kBatchElements = int64_t{1} << 23;

// The matrices of one part, which the shard contains: W_O and W_R of a router, otherwise one.
std::vector<MuonBatch> matrices_of(const OptimConfig& config, const Parameter& parameter, size_t shard,
                                   int64_t begin, const ParameterPart& part) {
  const int64_t rows = part.shape[0], columns = part.shape[1], hidden = columns - parameter.history_columns;
  std::vector<MuonBatch> matrices;
  for (const ComponentRange& range : component_ranges(parameter, 0, columns)) {
    const int64_t width = range.component == Component::kHistory ? parameter.history_columns : hidden;
    matrices.push_back({.shard = shard,
                        .begin = begin + (range.component == Component::kHistory ? hidden : 0),
                        .count = 1,
                        .rows = rows,
                        .columns = width,
                        .stride = columns,
                        .rates = update_rates(config, parameter, range.component)});
  }
  return matrices;
}

// Adds the next matrix to the batch if it has the same shape and follows it.
bool extend(MuonBatch& batch, const MuonBatch& next) {
  const int64_t size = batch.rows * batch.columns;
  const bool follows = batch.shard == next.shard && next.begin == batch.begin + batch.count * size;
  const bool same = batch.rows == next.rows && batch.columns == next.columns && batch.rates == next.rates;
  if (!follows || !same || batch.stride != batch.columns || next.stride != next.columns) return false;
  if ((batch.count + 1) * size > kBatchElements) return false;
  ++batch.count;
  return true;
}

}  // namespace

UpdateRates update_rates(const OptimConfig& config, const Parameter& parameter, Component component) {
  UpdateRates rates;
  if (parameter.decay) rates.weight_decay = config.weight_decay;
  if (component == Component::kRouter) rates.lr = config.router_lr;
  if (component == Component::kHistory) {
    rates.lr = config.history_lr;
    if (config.history_weight_decay >= 0) rates.weight_decay = config.history_weight_decay;
  }
  if (rates.lr == 0) rates.weight_decay = 0;  // it scales with the rate
  return rates;
}

bool uses_muon(const OptimConfig& config, const Parameter& parameter) {
  if (config.kind != OptimKind::kMuon || parameter.parts.front().shape.size() != 2) return false;
  switch (parameter.component) {
    case Component::kAttention:
    case Component::kMlp:
    case Component::kExperts:
      return true;
    case Component::kRouter:
      return config.muon_router;
    default:
      return false;
  }
}

std::vector<AdamWGroup> adamw_groups(const OptimConfig& config, const Parameters& parameters,
                                     const std::vector<ParameterShard>& shards) {
  std::map<UpdateRates, std::vector<ShardRange>, std::greater<>> groups;
  for (size_t i = 0; i < shards.size(); ++i) {
    const Parameter& parameter = parameters.all()[shards[i].parameter];
    if (!parameter.leaf.requires_grad() || uses_muon(config, parameter)) continue;
    for (const auto& range : component_ranges(parameter, shards[i].begin, shards[i].end)) {
      auto& ranges = groups[update_rates(config, parameter, range.component)];
      const int64_t begin = range.begin - shards[i].begin, end = range.end - shards[i].begin;
      if (!ranges.empty() && ranges.back().shard == i && ranges.back().end == begin) {
        ranges.back().end = end;
      } else {
        ranges.push_back({i, begin, end});
      }
    }
  }
  std::vector<AdamWGroup> list;
  for (auto& [rates, ranges] : groups) list.push_back({rates, std::move(ranges)});
  return list;
}

at::Tensor MuonBatch::view_of(const at::Tensor& flat) const {
  return flat.as_strided({count, rows, columns}, {rows * stride, stride, 1}, flat.storage_offset() + begin);
}

std::vector<MuonBatch> muon_batches(const OptimConfig& config, const Parameters& parameters,
                                    const std::vector<ParameterShard>& shards) {
  std::vector<MuonBatch> batches;
  for (size_t i = 0; i < shards.size(); ++i) {
    const Parameter& parameter = parameters.all()[shards[i].parameter];
    if (!parameter.leaf.requires_grad() || !uses_muon(config, parameter)) continue;
    for (const ParameterPart& part : parameter.parts) {
      const int64_t begin = part.offset, end = begin + part.shape[0] * part.shape[1];
      if (end <= shards[i].begin || begin >= shards[i].end) continue;
      TORCH_INTERNAL_ASSERT(shards[i].begin <= begin && end <= shards[i].end, part.name, " is split");
      for (const auto& matrix : matrices_of(config, parameter, i, begin - shards[i].begin, part)) {
        if (batches.empty() || !extend(batches.back(), matrix)) batches.push_back(matrix);
      }
    }
  }
  return batches;
}

}  // namespace hero
