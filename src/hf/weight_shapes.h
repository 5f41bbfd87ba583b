#pragma once
// Names and shapes of a model's weights on disk, computed without building the model.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "config/config.h"

namespace hero {

/// Calls `visit` with the name on disk and the shape of every tensor of
/// Transformer(config).parameters().state_dict(), without allocating them. Visits a layer's norms before its
/// other tensors and a router before its experts: a `visit` that throws at the first tensor missing in a file
/// returns early, even for huge sizes in the configuration.
void for_each_weight(
    const Config& config,
    const std::function<void(const std::string& name, const std::vector<int64_t>& shape)>& visit);

}  // namespace hero
