#pragma once
// Warnings about options that have no effect in a configuration, or a slow one. check() rejects options that
// would train a different model than requested.
#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"

namespace hero {

/// Non-default options of a training run that have no effect, one line each, such as
/// "router.window = 3 has no effect: router.kind = \"baseline\"". `ranks`: number of processes; `cuda`: the
/// run uses a GPU.
std::vector<std::string> options_without_effect(const Config& config, int64_t ranks, bool cuda);

/// Sizes of matrices in bf16 that the CPU kernels do not support, one line each. `cuda`: the run uses a GPU.
std::vector<std::string> sizes_without_kernels(const Config& config, bool cuda);

/// Model options without a key in config.json, one line each: programs that read the folder without its
/// config.toml compute different results. `dtype`: of the weights in the folder.
std::vector<std::string> options_missing_from_config_json(const Config& config, Dtype dtype);

/// Writes each line to stderr, prefixed with "warning: ".
void warn(const std::vector<std::string>& lines);

}  // namespace hero
