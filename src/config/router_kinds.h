#pragma once
// The values of router.kind: names, the options that each reads, data for messages and exported folders.
// model/router_kind.h has what a model, its cost and its config.json need, model/router.h the computation.
#include <string>
#include <vector>

#include "config/config.h"

namespace hero {

struct Field;

/// One value of `router.kind`.
struct RouterKindInfo {
  std::string name;         ///< the value
  std::string title;        ///< in messages and tables: "HERO"
  std::string description;  ///< in the help of router.kind, after the name; empty: none
  /// Whether these routers read `field`, one of the options that not all kinds read.
  bool (*reads)(const Field& field);
  std::string limit;          ///< why options of other kinds have no effect: "reads no history"
  bool stores_probs = false;  ///< later layers read its routing probabilities
  std::string extends;        ///< kind whose models --init-from accepts too, adding history weights; or empty
  bool in_transformers = false;  ///< transformers implements the router itself
  /// The routers of a router stage share weights, so one pipeline rank must have all layers of the stage.
  bool shares_weights = false;
  bool has_vectors = false;  ///< some of its weights are vectors, which Muon does not update
  std::string modeling;      ///< "hero": modeling_hero_*.py and hero_router.py in an exported folder
  std::string class_prefix;  ///< of the classes in modeling_*.py: "Hero"
};

/// All kinds; the first is the baseline.
const std::vector<RouterKindInfo>& router_kinds();

/// The kind of `router`. UserError if there is no such kind.
const RouterKindInfo& router_kind_info(const RouterConfig& router);

/// The kind that comparisons of costs show next to the baseline: the configured one, for a baseline "hero".
const RouterKindInfo& compared_kind(const RouterConfig& router);

/// Whether routers of this kind read the option. True for options that do not depend on the kind.
bool reads_option(const RouterConfig& router, const Field& field);
bool reads_option(const RouterConfig& router, const std::string& key);

/// Keys of the options with all attributes of `wanted` and none of `unwanted` that routers of this kind do
/// not read, in the order of fields().
std::vector<std::string> unread_options(const RouterConfig& router, uint32_t wanted, uint32_t unwanted = 0);

/// Entries per layer and token in a message between pipeline ranks: `parallel.history_top`, or 0 (all values)
/// if the kind stores no probabilities.
int64_t history_top(const Config& config);

}  // namespace hero
