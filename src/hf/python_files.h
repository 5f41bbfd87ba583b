#pragma once
// The modeling code for transformers, python/hero_moe/hf/*.py, embedded at build time.
#include <string_view>
#include <utility>
#include <vector>

namespace hero {

/// (file name, contents) of each file.
const std::vector<std::pair<std::string_view, std::string_view>>& python_files();

}  // namespace hero
