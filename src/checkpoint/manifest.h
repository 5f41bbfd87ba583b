// manifest.json of a checkpoint: {"files": {NAME: {"bytes": n, "sha256": hex}}, "sha256": hash of files as
// written}, in a canonical form, so that any flipped bit in it is detected too.
#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "io/file_hash.h"

namespace hero {

constexpr const char* kManifestName = "manifest.json";

/// The manifest for these files.
std::string make_manifest(const std::map<std::string, FileDigest>& files);

/// The files that a command reads: all, or only those of the model.
enum class CheckpointUse { kTraining, kModel };

/// Checks size and hash of every file in the manifest. Returns nullopt if all match, otherwise one line with
/// the first mismatch, found and expected. Ignores other files. `kModel`: the optimizer's files may be
/// missing and are not hashed.
std::optional<std::string> find_corruption(const std::filesystem::path& folder,
                                           CheckpointUse use = CheckpointUse::kTraining);

}  // namespace hero
