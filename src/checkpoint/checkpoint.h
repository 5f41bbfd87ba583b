// Checkpoints: RUN/checkpoints/step-%08d/ holds config.json, model*.safetensors, optimizer*.safetensors,
// state.json, config.toml, tokenizer files and manifest.json. A folder of that name is complete: it is
// written and synced beside its place (step-%08d.tmp) and renamed last; one that goes is renamed (.del)
// before its files are deleted. A process killed at any moment leaves every finished checkpoint whole.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "folder/resolve.h"
#include "folder/safetensors.h"

namespace hero {

struct CheckpointContents {
  std::vector<TensorView> model, optimizer;
  std::map<std::string, std::string>
      texts;  // file name -> contents: config.json, state.json, config.toml ...
  std::vector<std::filesystem::path> copies;  // files copied in under their own names
};

/// Writes and syncs RUN/checkpoints/step-%08d (a folder of that step is replaced by one atomic exchange),
/// then removes the oldest of the checkpoints up to this step beyond `keep` (keep <= 0: all stay).
/// Checkpoints of later steps stay. Tensors are sharded above `max_shard_bytes`. Returns the folder. RunError
/// says what failed, down to the system's reason; the unfinished folder is removed and earlier checkpoints
/// are intact.
std::filesystem::path save_checkpoint(const std::filesystem::path& run, int64_t step,
                                      const CheckpointContents& contents, int keep,
                                      size_t max_shard_bytes = size_t{4} << 30);

/// Removes what killed processes left unfinished. Call it before a run goes on, never beside a running one.
void clean_leftovers(const std::filesystem::path& run);

/// Checks every file's size and hash against manifest.json. UserError naming the first missing, truncated or
/// altered file, with found and expected, and the newest intact checkpoint before this one, if any, to resume
/// from.
void verify_checkpoint(const std::filesystem::path& checkpoint);

}  // namespace hero
