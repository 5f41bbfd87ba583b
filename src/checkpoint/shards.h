// Files of a checkpoint that several ranks write into one folder: each rank writes its own shards
// independently, rank 0 the common files.
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

/// A model tensor that several ranks write, slice by slice, into a file of its own.
struct SlicedTensor {
  std::string file;
  int64_t elements = 0;        ///< of the whole tensor
  std::vector<Range> written;  ///< by the ranks added so far
};

/// Files written by one or more ranks.
struct WrittenFiles {
  std::map<std::string, FileDigest> files;
  std::map<std::string, SlicedTensor> sliced;  ///< by tensor name; their files are not in `files`

  /// RunError for duplicate files.
  void add(const WrittenFiles& others);
  void add_file(const std::string& name, const FileDigest& record);

  /// Converts to and from one line of JSON.
  std::string text() const;
  static WrittenFiles parse(const std::string& text);
};

/// Writes and syncs the tensors of rank `rank` of `size`. A single rank writes model.safetensors and
/// optimizer.safetensors or their shards (see plan_shards). Otherwise each rank writes those of
/// model-RRRRR-of-NNNNN and optimizer-RRRRR-of-NNNNN, R from 1, and its slices of model-NAME.safetensors.
/// RunError, also for values that are not finite.
WrittenFiles write_tensors(const std::filesystem::path& folder, const CheckpointContents& contents,
                           int64_t rank, int64_t size, size_t max_shard_bytes);

/// Writes and syncs the common files after all ranks have written their tensors: indexes, texts, copies,
/// manifest. RunError, also for duplicate tensors and for slices that do not add up to the tensor.
void write_common_files(const std::filesystem::path& folder, const CheckpointContents& contents,
                        WrittenFiles written);

}  // namespace hero
