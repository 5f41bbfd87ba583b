#pragma once
// Resolves a folder given on the command line: a run folder, a checkpoint or a model folder.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace hero {

/// The folder name of a checkpoint: "step-%08d".
std::string checkpoint_name(int64_t step);

/// The step of a checkpoint_name; empty for other names.
std::optional<int64_t> checkpoint_step(const std::string& name);

/// The finished checkpoints of a run, ascending by step; empty if the folder does not exist.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& run);

/// The folder with config.json and model.safetensors or its index: the latest checkpoint of a run folder, or
/// `dir` itself for a checkpoint or model folder. UserError otherwise.
std::filesystem::path resolve_model_dir(const std::filesystem::path& dir);

}  // namespace hero
