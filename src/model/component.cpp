#include "model/component.h"

#include <algorithm>
#include <charconv>

#include "model/parameters.h"

namespace hero {
namespace {

constexpr std::string_view kLayers = "model.layers.";

bool contains(const std::string& name, std::string_view part) { return name.find(part) != std::string::npos; }

}  // namespace

Component component_of(const std::string& name, bool is_vector) {
  if (name.starts_with("lm_head.")) return Component::kHead;
  if (contains(name, ".gate.")) return Component::kRouter;
  if (!name.starts_with(kLayers)) return is_vector ? Component::kFinalNorm : Component::kEmbedding;
  if (is_vector) return Component::kNorm;
  if (contains(name, ".self_attn.")) return Component::kAttention;
  return contains(name, ".experts.") ? Component::kExperts : Component::kMlp;
}

int64_t decoder_layer_of(const std::string& name) {
  int64_t layer = -1;
  if (name.starts_with(kLayers))
    std::from_chars(name.data() + kLayers.size(), name.data() + name.size(), layer);
  return layer;
}

std::vector<ComponentRange> component_ranges(const Parameter& parameter, int64_t begin, int64_t end) {
  if (parameter.history_columns == 0) return {{parameter.component, begin, end}};
  const int64_t columns = parameter.leaf.size(1), hidden = columns - parameter.history_columns;
  std::vector<ComponentRange> ranges;
  for (int64_t next = begin; next < end;) {
    const int64_t first = next, row = first / columns * columns;
    const bool history = first - row >= hidden;
    next = std::min(end, history ? row + columns : row + hidden);
    ranges.push_back({history ? Component::kHistory : Component::kRouter, first, next});
  }
  return ranges;
}

}  // namespace hero
