#pragma once
// The models that a study compares: one configuration, and what each variant says over it.
#include <filesystem>
#include <string>
#include <vector>

#include "config/config.h"

namespace hero {

struct Variant {
  std::string name;
  std::filesystem::path overlay;
  Config config;
  std::string same_as;  ///< an earlier variant that trains the same model; empty: none
};

/// Variants by name (NAME.toml beside `base`, else among the program's own configurations) or as a path to a
/// TOML file, whose stem is then the name. `flags` count over everything. UserError where there is no such
/// file, two have one name, or a configuration is refused.
std::vector<Variant> read_variants(const std::filesystem::path& base, const std::vector<std::string>& names,
                                   const std::vector<std::string>& flags);

/// Whether both configurations train one model: what they differ in is not read, or leaves every S(l) the
/// same, as a window does that is no shorter than the stage.
bool same_model(const Config& a, const Config& b);

/// Routers whose S(l) is shorter than without the window.
int64_t layers_cut(const Config& config);

}  // namespace hero
