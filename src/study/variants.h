#pragma once
// The variants that a study compares: a base configuration with an overlay each.
#include <filesystem>
#include <string>
#include <vector>

#include "config/config.h"

namespace hero {

struct Variant {
  std::string name;
  std::filesystem::path overlay;
  Config config;
  std::string same_as;  ///< the variant that is trained for this one too; empty: it is trained itself
};

/// Variants by name (NAME.toml next to `base`, else built-in) or by path to a TOML file, with its stem as
/// name. `flags` override all files. UserError for a missing file, duplicate names, an invalid configuration,
/// or other steps, batches or seeds than those of the first variant.
std::vector<Variant> read_variants(const std::filesystem::path& base, const std::vector<std::string>& names,
                                   const std::vector<std::string>& flags);

/// Of variants with the same model the first is trained, unless the study's folder `out` has runs of another
/// one only: then that one.
void prefer_existing_runs(std::vector<Variant>& variants, const std::filesystem::path& out);

/// Whether both configurations train the same model: their differences are not read, or leave every S(l)
/// unchanged, like a window that is not shorter than the stage, or global history in one stage.
bool same_model(const Config& a, const Config& b);

/// Number of routers whose S(l) is truncated by the window.
int64_t layers_cut(const Config& config);

}  // namespace hero
