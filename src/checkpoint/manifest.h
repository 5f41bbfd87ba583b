// manifest.json of a checkpoint: {"files": {NAME: {"bytes": n, "sha256": hex}}, "sha256": hash of files as
// written}, in one canonical form, so that a flipped bit anywhere in it is noticed too.
#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "io/file_hash.h"

namespace hero {

constexpr const char* kManifestName = "manifest.json";

/// The manifest of files by name.
std::string make_manifest(const std::map<std::string, FileRecord>& files);

/// Nothing if every file of the manifest is there with its size and hash; else one line naming the first that
/// is not, with what was found and what was expected. Files that the manifest does not name are left out of
/// account.
std::optional<std::string> find_damage(const std::filesystem::path& folder);

}  // namespace hero
