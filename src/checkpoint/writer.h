#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace hero {

/// How the ranks of a run speak to each other. Every key is used once; who hears one waits for it, in any
/// thread, and throws where it waits in vain. A rank that is alone needs none.
struct Voices {
  int64_t rank = 0, size = 1;
  std::function<void(const std::string& key, const std::string& value)> tell;
  std::function<std::string(const std::string& key)> hear;
};

/// Writes checkpoints behind training's back: every rank its own files, at the same time. Rank 0 makes the
/// folder before the others write into it, adds what belongs to all, and publishes it when every file of
/// every rank is on the disk. If any rank fails nothing is published, and every rank throws what each failing
/// one said.
class CheckpointWriter {
 public:
  /// Keeps the newest `keep` checkpoints (0: all). Tensors are sharded above `max_shard_bytes`.
  CheckpointWriter(Voices voices, std::filesystem::path run, int keep,
                   size_t max_shard_bytes = size_t{4} << 30);
  /// Waits; a failure goes unsaid.
  ~CheckpointWriter() = default;
  CheckpointWriter(const CheckpointWriter&) = delete;

  /// Every rank calls it for the same steps in the same order, with its own part of the tensors (together
  /// every tensor once) and all texts and copies, of which rank 0's count. It waits for the last save, and
  /// returns when the tensors are copied; with `wait` when the checkpoint exists, and then copies nothing
  /// that lies in the CPU's memory. RunError as finish, of this save or the last.
  void save(int64_t step, const CheckpointContents& contents, bool wait);

  /// Waits until the last save is on the disk and old checkpoints are gone. RunError otherwise, once: which
  /// rank failed and how, down to the system's reason; the unfinished folder is removed, earlier checkpoints
  /// are intact.
  void finish();

 private:
  /// The contents with copies of the tensors, or of those alone that lie on another device.
  CheckpointContents copied(const CheckpointContents& contents, bool all);
  void write(int64_t number, int64_t step, const CheckpointContents& contents) const;
  std::string lead(const std::string& key, const std::filesystem::path& folder,
                   const CheckpointContents& contents) const;
  std::string follow(const std::string& key, const std::filesystem::path& folder,
                     const CheckpointContents& contents) const;

  Voices voices_;
  std::filesystem::path run_;
  int keep_;
  size_t max_shard_bytes_;
  int64_t saves_ = 0;
  std::vector<at::Tensor> copies_;  ///< memory that every save uses again
  std::future<void> writing_;       ///< last, so that it ends before what it uses
};

/// Saves a checkpoint of a process that is alone, and returns its folder. RunError as
/// CheckpointWriter::finish.
std::filesystem::path save_checkpoint(const std::filesystem::path& run, int64_t step,
                                      const CheckpointContents& contents, int keep,
                                      size_t max_shard_bytes = size_t{4} << 30);

}  // namespace hero
