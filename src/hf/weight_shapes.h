#pragma once
// What the weights of a model look like on disk, before there is a model.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "config/config.h"

namespace hero {

/// Calls `see` with the name on disk and the shape of every tensor of the model: what
/// Transformer(config).parameters().disk_tensors() holds, with nothing allocated, however large the numbers
/// in the configuration. A router comes before its experts and each layer's norm before its other tensors, so
/// that a `see` that throws at what a file lacks ends after as many calls as the file has tensors.
void for_each_weight(
    const Config& config,
    const std::function<void(const std::string& name, const std::vector<int64_t>& shape)>& see);

}  // namespace hero
