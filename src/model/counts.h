#pragma once
// Parameters and FLOPs of a model by component, for MFU and for `hero cost`.
#include <string>
#include <vector>

#include "config/config.h"

namespace hero {

/// For counts and sizes in formulas.
inline double to_double(int64_t n) { return static_cast<double>(n); }

/// Names of a router's rows in cost tables.
inline constexpr const char *kRouterCost = "router, hidden state", *kHistoryCost = "router, history";

/// One row of a cost table. FLOPs are per token; a multiply-add counts as two.
struct CostItem {
  std::string name;
  double parameters = 0;       ///< of the whole model
  double trained = 0;          ///< parameters that are not frozen (train.trainable)
  double active = 0;           ///< parameters used per token: K of E experts, none of the embedding
  double forward = 0;          ///< FLOPs of the forward pass
  double input_gradient = 0;   ///< FLOPs of the backward pass for activations; a detached history needs none
  double weight_gradient = 0;  ///< FLOPs of the backward pass for weights
  double paper = 0;  ///< FLOPs as the paper counts them: 6 per GEMM weight, none for attention scores

  double backward() const { return input_gradient + weight_gradient; }
  bool is_router() const { return name == kRouterCost || name == kHistoryCost; }
  CostItem& operator+=(const CostItem& other);
};

/// A matrix product that uses `active` of its `parameters` weights per token.
CostItem gemm_cost(const std::string& name, double parameters, double active, bool input_gradient = true);

/// What the multi-token prediction modules add to their decoder layers: projections, norms, output
/// projections.
std::vector<CostItem> mtp_costs(const Config& config);

/// Decoder layer i, from 0, of the main model or a module: projections, attention scores, norms, and a dense
/// MLP or router and experts. `visible`: number of layers that its router sees (visible_counts).
std::vector<CostItem> layer_costs(const Config& config, int64_t i, int64_t visible);

/// Whether the backward pass continues from decoder layer i to its input: if any weight before it is not
/// frozen.
bool reaches_input(const Config& config, int64_t i);

/// The whole model: embedding, layer costs summed by name, final norm, output projection, and the multi-token
/// prediction modules, as in training.
std::vector<CostItem> model_costs(const Config& config);

/// Number of layers that each decoder layer's router sees, including the modules' layers; 0 without history
/// and for dense layers.
std::vector<int64_t> visible_counts(const Config& config);

/// FLOPs of the forward and backward pass per trained token.
double training_flops_per_token(const Config& config);

}  // namespace hero
