// Checkpoints: RUN/checkpoints/step-%08d/ contains config.json, model*.safetensors, optimizer*.safetensors,
// state.json, config.toml, tokenizer files and manifest.json. A folder of that name is complete: it is
// written and synced as step-%08d.tmp, then renamed; before deletion it is renamed to .del. Killing the
// process at any moment leaves every finished checkpoint intact.
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

/// A slice of a model tensor, starting at element `begin`; other ranks save the rest.
struct ModelSlice {
  std::string name;
  std::vector<int64_t> shape;  ///< of the whole tensor
  int64_t begin;
  at::Tensor values;  ///< 1-D
};

/// What one rank saves. Tensors must be contiguous and of a safetensors dtype; any device.
struct CheckpointContents {
  std::vector<std::pair<std::string, at::Tensor>> model, optimizer;
  std::vector<ModelSlice> model_slices;
  std::map<std::string, std::string>
      texts;  // file name -> contents: config.json, state.json, config.toml ...
  std::vector<std::filesystem::path> copies;  // files to copy into the folder, same names
};

/// RUN/checkpoints/step-%08d, and the temporary folder in which it is written.
std::filesystem::path checkpoint_folder(const std::filesystem::path& run, int64_t step);
std::filesystem::path unfinished_folder(const std::filesystem::path& folder);

/// Creates an empty unfinished folder for a checkpoint, deleting leftovers.
void start_checkpoint(const std::filesystem::path& folder);

/// Renames the unfinished folder, complete and synced, to its final name. An existing folder is replaced by
/// an atomic exchange and remains under a leftover's name.
void publish_checkpoint(const std::filesystem::path& folder);

/// Syncs the name of a published checkpoint and removes the folder it replaced.
void finalize_checkpoint(const std::filesystem::path& folder);

/// Removes all but the newest `keep` of the checkpoints up to `step` (keep <= 0: removes none). Keeps the
/// newest one up to step `verified` and all after it, so that a run whose loss diverged can go back, and the
/// one of step `best` (-1: none).
void prune_checkpoints(const std::filesystem::path& run, int keep, int64_t step, int64_t verified,
                       int64_t best);

/// Removes what killed processes left unfinished. Call it before a run resumes, never while it is running.
void clean_leftovers(const std::filesystem::path& run);

/// resolve_model_dir for a command that loads the model. If the folder has a manifest, checks the sizes of
/// all files and the hashes of the model's. UserError naming the first missing, truncated or altered file,
/// found and expected values, and the newest intact earlier checkpoint.
std::filesystem::path open_model_folder(const std::filesystem::path& dir);

struct DamagedCheckpoint {
  std::filesystem::path folder;
  std::string corruption;  ///< as find_corruption describes it
};

struct IntactCheckpoint {
  std::filesystem::path folder;            ///< empty: the run has no checkpoints
  std::vector<DamagedCheckpoint> damaged;  ///< newer ones
};

/// The newest intact checkpoint of a run; changes nothing. UserError with the newest one's damage if none is
/// intact.
IntactCheckpoint newest_intact_checkpoint(const std::filesystem::path& run);

/// Renames the damaged checkpoints to NAME.damaged, with a warning.
void set_aside_damaged(const IntactCheckpoint& found);

}  // namespace hero
