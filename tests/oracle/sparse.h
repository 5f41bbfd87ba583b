#pragma once
#include "oracle/oracle.h"

namespace oracle {

/// Computes probs, scores, chosen, gates and ids from the logits.
void select_experts(const hero::Config& config, const at::Tensor& bias_E, LayerRouting& routing,
                    const Pass& pass = {});

/// Drops assignments beyond ceil(factor * T * K / E) per expert from chosen [T, E].
at::Tensor within_capacity(const at::Tensor& chosen, const at::Tensor& weights_TE, const at::Tensor& ids_TK,
                           double factor, hero::DropPolicy drop_policy);

}  // namespace oracle
