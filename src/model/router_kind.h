#pragma once
// What depends on router.kind besides the computation: visible layers, weights, costs, keys of config.json.
// All other code queries it. No tensors: router.h has the computation of each kind, config/router_kinds.h the
// names and options.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "config/config.h"

namespace hero {

class JsonSection;
struct CostItem;

/// A weight of one MoE layer's router.
struct RouterWeight {
  std::string name;  ///< in checkpoints, after the MoE block's name ("model.layers.3.mlp."): "gate.weight"
  std::vector<int64_t> shape;
  int64_t history_columns = 0;  ///< trailing columns that multiply the history: W_R
};

/// One value of router.kind. MoE layers l count from 1; `seen` is the number of layers in S(l).
class RouterKind {
 public:
  virtual ~RouterKind() = default;

  /// The value of router.kind.
  virtual std::string name() const = 0;

  /// S(l): the earlier layers whose history slots layer l reads, oldest first, given the stage of each layer.
  virtual std::vector<int64_t> visible(int64_t l, const std::vector<int64_t>& stage_of,
                                       const RouterConfig& router) const = 0;
  /// Values per token in a layer's history slot, in the dtype of the router; 0: there are no slots. Memory of
  /// the history and traffic between pipeline ranks follow from it and from `visible`.
  virtual int64_t history_width(int64_t experts, const RouterConfig& router) const = 0;

  /// Layer l's weights. The first layer also has those that all layers share, if there are any.
  virtual std::vector<RouterWeight> weights(const Config& config, int64_t l, int64_t seen) const = 0;
  /// Parameters and FLOPs of these weights, in rows named kRouterCost and kHistoryCost.
  virtual std::vector<CostItem> costs(const Config& config, int64_t l, int64_t seen) const = 0;

  /// Whether the router computes with fp32 copies of operands in bf16.
  virtual bool widens_operands(const Config&) const { return false; }
  /// Values, in fp32 (fp64 in fp64 runs), that layer l's forward pass of `tokens` tokens saves for the
  /// backward pass besides its input, history, logits, probabilities and statistics. `reached`: the
  /// backward pass continues to its input.
  virtual double saved_values(const Config& config, int64_t seen, bool reached, double tokens) const = 0;

  /// Adds the kind's keys to a config.json.
  virtual void write(const Config& config, nlohmann::ordered_json& config_json) const = 0;
  /// Sets router.kind and the options if config.json has the kind's keys. UserError for invalid values.
  virtual void read(JsonSection& config_json, const ModelConfig& model, RouterConfig& router) const = 0;
};

/// All kinds, in the order of router_kinds().
const std::vector<const RouterKind*>& all_router_kinds();

/// The kind of `router`. UserError if there is no such kind.
const RouterKind& router_kind(const RouterConfig& router);

/// Whether `parameter` is the name in checkpoints of a weight of a router.
bool is_router_weight(const Config& config, const std::string& parameter);

/// Reads the key `stages` of a kind's object in config.json, the stage of each MoE layer as stage_of_layers
/// returns it, into router.stages and router.stage_sizes. The sizes are empty if the stages have the default
/// sizes. Changes nothing if the key is missing; UserError for invalid stages.
void read_stages(JsonSection& section, const ModelConfig& model, RouterConfig& router);

}  // namespace hero
