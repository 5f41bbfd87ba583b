#pragma once
// What a folder given on the command line is: a run, a checkpoint, or a model folder.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace hero {

/// "step-%08d", a checkpoint's name.
std::string checkpoint_name(int64_t step);

/// The step in such a name; nothing for any other.
std::optional<int64_t> checkpoint_step(const std::string& name);

/// Every finished checkpoint of a run, ascending by step; none if there is no such folder.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& run);

/// A run folder (its latest checkpoint), a checkpoint, or a model folder -> the folder that holds config.json
/// and model.safetensors or its index. UserError otherwise.
std::filesystem::path resolve_model_dir(const std::filesystem::path& dir);

}  // namespace hero
