#pragma once
// Weights and arithmetic of a model, by part: for model FLOPs utilisation and for `hero cost`.
#include <string>
#include <vector>

#include "config/config.h"

namespace hero {

/// One kind of weights. Operations are per token; a multiplication and an addition are two.
struct Part {
  std::string name;
  double parameters = 0;  ///< of the whole model
  double active = 0;      ///< those that a token meets: K of E experts; of the embedding none
  double forward = 0;     ///< operations of the forward pass
  double backward = 0;    ///< of the backward pass; the history's input needs no gradient
  double paper = 0;  ///< by the paper's count: 6 per weight of a matrix product, none for attention scores

  Part& operator+=(const Part& other);
};

inline constexpr const char* kRouterPart = "router, hidden state";
inline constexpr const char* kHistoryPart = "router, history";

/// Decoder layer i, from 0: projections, scores, norms, and a dense part or router and experts. `visible`:
/// the layers that its router sees, 0 for a baseline or a dense layer.
std::vector<Part> layer_parts(const Config& config, int64_t i, int64_t visible);

/// The whole model: embedding, the layers' parts summed by name, final norm, output projection.
std::vector<Part> model_parts(const Config& config);

/// Layers that every decoder layer's router sees; 0 for a baseline router and for dense layers.
std::vector<int64_t> visible_counts(const Config& config);

/// Operations of forward and backward pass per trained token.
double training_flops_per_token(const Config& config);

}  // namespace hero
