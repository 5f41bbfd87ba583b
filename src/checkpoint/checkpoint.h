// Checkpoints: RUN/checkpoints/step-%08d/ holds config.json, model*.safetensors, optimizer*.safetensors,
// state.json, config.toml, tokenizer files and manifest.json. A folder of that name is complete: it is
// written and synced beside its place (step-%08d.tmp) and renamed last; one that goes is renamed (.del)
// before its files are deleted. A process killed at any moment leaves every finished checkpoint whole.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "hf/resolve.h"

namespace hero {

/// Elements of a model's tensor from `begin` on; other ranks hold the others.
struct ModelSlice {
  std::string name;
  std::vector<int64_t> shape;  ///< of the whole tensor
  int64_t begin;
  at::Tensor values;  ///< 1-D
};

/// What one rank has to save. Tensors are contiguous, on any device, of a type of the files.
struct CheckpointContents {
  std::vector<std::pair<std::string, at::Tensor>> model, optimizer;
  std::vector<ModelSlice> model_slices;
  std::map<std::string, std::string>
      texts;  // file name -> contents: config.json, state.json, config.toml ...
  std::vector<std::filesystem::path> copies;  // files copied in under their own names
};

/// RUN/checkpoints/step-%08d, and beside it the place where it is written.
std::filesystem::path checkpoint_folder(const std::filesystem::path& run, int64_t step);
std::filesystem::path unfinished_folder(const std::filesystem::path& folder);

/// Makes the unfinished folder of a checkpoint, empty whatever was left there.
void start_checkpoint(const std::filesystem::path& folder);

/// Puts the unfinished folder, complete and synced, in its place. A folder of that name is replaced by one
/// atomic exchange, and lies under a leftover's name afterwards.
void publish_checkpoint(const std::filesystem::path& folder);

/// Makes a published checkpoint's name durable, then removes what it replaced and the oldest of the
/// checkpoints up to it beyond `keep` (keep <= 0: all stay). Checkpoints of later steps stay.
void settle_checkpoint(const std::filesystem::path& folder, int keep);

/// Removes what killed processes left unfinished. Call it before a run goes on, never beside a running one.
void clean_leftovers(const std::filesystem::path& run);

/// Checks every file's size and hash against manifest.json. UserError naming the first missing, truncated or
/// altered file, with found and expected, and the newest intact checkpoint before this one, if any, to resume
/// from.
void verify_checkpoint(const std::filesystem::path& checkpoint);

}  // namespace hero
