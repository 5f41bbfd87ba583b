#pragma once
#include "oracle/oracle.h"

namespace oracle {

/// What tokens of a sequence see: visible [S, S] bool, row i for token i, and their positions [S], fp64.
struct Scope {
  at::Tensor visible, positions;
};

/// Grouped-query or latent attention of one sequence x [S, D]; `prefix` ends with "self_attn.".
/// Raises `max_logit` to the largest logit.
at::Tensor attention(const hero::ModelConfig& model, const Weights& weights, const std::string& prefix,
                     const at::Tensor& x, const Scope& scope, double& max_logit);

/// x / sqrt(mean of squares + eps) * weight, per row.
at::Tensor norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// x W^T
at::Tensor project(const at::Tensor& x, const at::Tensor& weight);

}  // namespace oracle
