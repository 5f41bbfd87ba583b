#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "io/error.h"

namespace hero {

/// A failed save, or failed deletion of old checkpoints. Every rank throws it in the same save.
class SaveError : public RunError {
 public:
  using RunError::RunError;
};

/// Access to the rendezvous store. Every key is used once. `get` waits for its key, in any thread, and throws
/// on timeout. A single rank needs no functions.
struct StoreClient {
  int64_t rank = 0, world_size = 1;
  std::function<void(const std::string& key, const std::string& value)> set;
  std::function<std::string(const std::string& key)> get;
};

/// Writes checkpoints asynchronously; all ranks write their own files in parallel. Rank 0 creates the folder,
/// adds the common files, and publishes it when all files of all ranks are on disk. If any rank fails,
/// nothing is published and every rank throws the errors of all failing ranks. Old checkpoints are deleted
/// once a newer one is verified: a step after it had a finite loss.
class CheckpointWriter {
 public:
  /// Keeps the newest `keep` checkpoints (0: all). Tensors are sharded above `max_shard_bytes`: a resume
  /// hashes files in parallel, each on one thread.
  CheckpointWriter(StoreClient store_client, std::filesystem::path run, int keep,
                   size_t max_shard_bytes = size_t{1} << 30);
  /// Waits; ignores failures.
  ~CheckpointWriter() = default;
  CheckpointWriter(const CheckpointWriter&) = delete;

  /// Collective: same steps in the same order on every rank. Each rank passes its own tensors (every tensor
  /// exactly once over all ranks); texts and copies are taken from rank 0. Waits for the previous save and
  /// returns when the tensors are copied. With `wait`, returns when the checkpoint exists and does not copy
  /// CPU tensors. SaveError as finish, for this save or the previous one, which has to be saved again then.
  void save(int64_t step, const CheckpointContents& contents, bool wait);

  /// Waits until the last save is on disk and old checkpoints are deleted. Throws a failure once, as
  /// SaveError with the failing ranks and the system's reason; the unfinished folder is removed, earlier
  /// checkpoints are intact. RunError if the ranks cannot communicate.
  void finish();

  /// Checkpoints up to this step are verified; applies to the next save.
  void mark_verified(int64_t step) { retention_.verified = step; }
  /// This checkpoint is not deleted, in addition to the newest ones (-1: none); applies to the next save.
  void keep_best(int64_t step) { retention_.best = step; }
  int64_t verified() const { return retention_.verified; }
  /// Failures since the last save that succeeded.
  int64_t failures() const { return failures_; }

 private:
  /// The contents with CPU copies of `all` tensors, or only of those on other devices.
  CheckpointContents copied(const CheckpointContents& contents, bool all);
  /// Which checkpoints are not deleted, at the time of a save.
  struct Retention {
    int64_t verified = -1, best = -1;  ///< steps; -1: none
  };
  void write(int64_t number, int64_t step, Retention retention, const CheckpointContents& contents) const;
  std::string write_as_rank_zero(const std::string& key, int64_t step, Retention retention,
                                 const CheckpointContents& contents) const;
  std::string write_as_other_rank(const std::string& key, const std::filesystem::path& folder,
                                  const CheckpointContents& contents) const;

  StoreClient store_client_;
  std::filesystem::path run_;
  int keep_;
  size_t max_shard_bytes_;
  int64_t saves_ = 0, failures_ = 0;
  Retention retention_;
  std::vector<at::Tensor> copies_;  ///< memory reused by every save
  std::future<void> writing_;       ///< last member: joins before the others are destroyed
};

}  // namespace hero
