#pragma once
// The modelling code for transformers, python/hero_moe/hf/*.py, as the build found it.
#include <string_view>
#include <utility>
#include <vector>

namespace hero {

/// File name and text of each.
const std::vector<std::pair<std::string_view, std::string_view>>& python_files();

}  // namespace hero
