// The files of a checkpoint that several ranks write into one folder: each its own shards, without knowing
// the others'; rank 0 what stands in all of them.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "hf/ranges.h"
#include "io/file_hash.h"

namespace hero {

/// A model's tensor that several ranks write into one file of its own.
struct SharedTensor {
  std::string file;
  int64_t elements = 0;        ///< of the whole tensor
  std::vector<Range> written;  ///< by the ranks of which we know
};

/// What was written: by one rank, or by all together.
struct WrittenFiles {
  std::map<std::string, FileRecord> files;
  std::map<std::string, SharedTensor> shared;  ///< by the tensor's name; their files are not in `files`

  /// RunError for a file that is there already.
  void add(const WrittenFiles& others);
  void add_file(const std::string& name, const FileRecord& record);

  /// As one line of JSON, and back.
  std::string text() const;
  static WrittenFiles parse(const std::string& text);
};

/// Writes and syncs the tensors of rank `rank` of `size`: model.safetensors and optimizer.safetensors or
/// their shards (see plan_shards) where it is alone, else those of model-RRRRR-of-NNNNN and
/// optimizer-RRRRR-of-NNNNN, R from 1, and its elements of model-NAME.safetensors for every slice. RunError.
WrittenFiles write_tensors(const std::filesystem::path& folder, const CheckpointContents& contents,
                           int64_t rank, int64_t size, size_t max_shard_bytes);

/// Writes and syncs the rest, once every rank's tensors are there: indexes, texts, copies, the manifest.
/// RunError, also for a tensor that is there twice, or whose slices are not the whole of it.
void write_rest(const std::filesystem::path& folder, const CheckpointContents& contents,
                WrittenFiles written);

}  // namespace hero
