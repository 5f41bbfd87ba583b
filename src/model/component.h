#pragma once
// The part of the model that a weight belongs to. The optimizer selects algorithm and rates by it; norms are
// logged by it.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace hero {

struct Parameter;

enum class Component {
  kEmbedding,
  kAttention,
  kMlp,        ///< dense feed-forward layers and shared experts
  kExperts,    ///< routed experts
  kRouter,     ///< W_O; all weights of a router without W_R
  kHistory,    ///< W_R, the trailing columns of a HERO router's weight
  kNorm,       ///< vectors of decoder layers
  kFinalNorm,  ///< before the output head
  kHead
};

struct ComponentInfo {
  const char* key;  ///< in metrics
  bool per_layer;   ///< every decoder layer may have one
};

/// By Component.
inline constexpr std::array<ComponentInfo, 9> kComponents = {{{"embedding", false},
                                                              {"attention", true},
                                                              {"mlp", true},
                                                              {"experts", true},
                                                              {"w_o", true},
                                                              {"w_r", true},
                                                              {"norm", true},
                                                              {"final_norm", false},
                                                              {"head", false}}};

/// The component of a parameter with this name, and number of dimensions; kRouter for a whole router.
Component component_of(const std::string& name, bool is_vector);

/// The decoder layer, from 0, of the parameter with this name; -1 if it is in none.
int64_t decoder_layer_of(const std::string& name);

/// A range of a flattened parameter.
struct ComponentRange {
  Component component;
  int64_t begin, end;
};

/// The elements [begin, end) of the parameter by component: one range, or two per row of a weight [W_O |
/// W_R].
std::vector<ComponentRange> component_ranges(const Parameter& parameter, int64_t begin, int64_t end);

}  // namespace hero
