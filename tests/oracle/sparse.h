#pragma once
#include "oracle/oracle.h"

namespace oracle {

/// Fills probs, scores, chosen, gates and ids from the logits: the sparse policy token by token, expert by
/// expert.
void choose(const hero::Config& config, const at::Tensor& bias_E, LayerRouting& routing,
            const Pass& pass = {});

/// chosen [T, E] without the assignments beyond ceil(factor * T * K / E) of each expert.
at::Tensor within_capacity(const at::Tensor& chosen, const at::Tensor& weights_TE, const at::Tensor& ids_TK,
                           double factor, const std::string& drop_policy);

}  // namespace oracle
