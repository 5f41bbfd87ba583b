#pragma once
// Options that are accepted and do not do what their names suggest in a given configuration. What would train
// another model than the one asked for is refused by check() instead.
#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"

namespace hero {

/// Options of a training run that differ from their defaults and have no effect, one line each, such as
/// "router.window = 3 has no effect: router.kind = \"baseline\"". `ranks`: processes of the run; `cuda`:
/// whether it computes on a GPU.
std::vector<std::string> options_without_effect(const Config& config, int64_t ranks, bool cuda);

/// Options of a model for which config.json has no key, one line each: programs that read the folder without
/// its config.toml compute something else. `dtype`: of the weights in the folder, "fp32" or "bf16".
std::vector<std::string> options_outside_config_json(const Config& config, const std::string& dtype);

/// Writes each line to stderr behind "warning: ".
void warn(const std::vector<std::string>& lines);

}  // namespace hero
