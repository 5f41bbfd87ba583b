#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/ranks.h"
#include "checkpoint/writer.h"
#include "hf/ranges.h"
#include "hf/safetensors.h"
#include "hf/temporary_folder.h"

namespace hero::test {

constexpr int kKeep = 2;

/// UserError with the first difference between a checkpoint and its manifest.
inline void verify_checkpoint(const std::filesystem::path& checkpoint) {
  if (const auto corruption = find_corruption(checkpoint)) throw UserError(*corruption);
}

/// A small checkpoint. Every file depends on its step; `model` is sharded when saved with kShardBytes.
class ExampleContents {
 public:
  explicit ExampleContents(int64_t step) {
    contents_.model = {{"model.a", at::full({10, 30}, step, at::kFloat)},
                       {"model.b", at::full({300}, step, at::kFloat)}};
    contents_.optimizer = {{"exp_avg.model.a", at::full({100}, step, at::kFloat)},
                           {"step", at::full({20}, step, at::kLong)}};
    contents_.texts = {{"config.json", "{}"},
                       {"config.toml", "[train]\n"},
                       {"state.json", "{\"step\":" + std::to_string(step) + "}"}};
  }
  CheckpointContents& operator*() { return contents_; }

 private:
  CheckpointContents contents_;
};

constexpr size_t kShardBytes = 2000;

/// Saves a checkpoint of a single process and returns its folder; all checkpoints are verified. RunError as
/// CheckpointWriter::finish.
inline std::filesystem::path save_checkpoint(const std::filesystem::path& run, int64_t step,
                                             const CheckpointContents& contents, int keep) {
  CheckpointWriter writer({}, run, keep, kShardBytes);
  writer.mark_verified(step);
  writer.save(step, contents, /*wait=*/true);
  return checkpoint_folder(run, step);
}

inline std::filesystem::path save_example(const std::filesystem::path& run, int64_t step, int keep = kKeep) {
  ExampleContents contents(step);
  return save_checkpoint(run, step, *contents, keep);
}

/// One rank's part of the same checkpoint when model.b and its moment are sharded over `size` ranks.
inline CheckpointContents example_of_rank(int64_t step, int64_t rank, int64_t size) {
  const int64_t begin = 300 * rank / size, end = 300 * (rank + 1) / size;
  const auto values = at::full({end - begin}, step, at::kFloat);
  CheckpointContents contents = *ExampleContents(step);
  contents.model = {{"model.of-rank-" + std::to_string(rank), values}};
  contents.model_slices = {{"model.b", {300}, begin, values}};
  contents.optimizer = {{slice_name("exp_avg.model.b", {begin, end}), values}};
  return contents;
}

/// Saves the examples of `size` ranks asynchronously; throws what rank 0 throws.
inline void save_by_ranks(const std::filesystem::path& run, int64_t step, int64_t size) {
  InMemoryStore store;
  const auto errors = run_ranks(size, [&](int64_t rank) {
    CheckpointWriter writer(store.client(rank, size), run, kKeep);
    writer.mark_verified(step);
    writer.save(step, example_of_rank(step, rank, size), /*wait=*/false);
    writer.finish();
  });
  if (!errors[0].empty()) throw RunError(errors[0]);
}

inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

/// Invariants of a killed run after cleanup: it can resume from step `at_least` or later, every checkpoint is
/// intact and consistent, there are no other files, and saving works.
inline void expect_resumable(const std::filesystem::path& run, int64_t at_least) {
  clean_leftovers(run);
  const auto checkpoints = list_checkpoints(run);
  ASSERT_FALSE(checkpoints.empty());
  EXPECT_LE(checkpoints.size(), size_t{kKeep} + 1);
  std::vector<std::string> names;
  for (const auto& checkpoint : checkpoints) {
    EXPECT_NO_THROW(verify_checkpoint(checkpoint)) << checkpoint;
    names.push_back(checkpoint.filename());
    const int64_t step = std::stoll(names.back().substr(5));
    EXPECT_EQ(read_bytes(checkpoint / "state.json"), "{\"step\":" + std::to_string(step) + "}");
    const ShardedReader model(checkpoint, "model");
    EXPECT_EQ(static_cast<const float*>(model.find("model.b")->data)[299], static_cast<float>(step));
  }
  EXPECT_EQ(names_in(run / "checkpoints"), names);
  const int64_t last = std::stoll(names.back().substr(5));
  EXPECT_GE(last, at_least);
  EXPECT_NO_THROW(save_example(run, last));
  EXPECT_NO_THROW(save_example(run, last + 1));
  EXPECT_EQ(list_checkpoints(run).size(), size_t{kKeep});
}

using Save = std::function<void(const std::filesystem::path& run, int64_t step)>;

/// Kills a child after `microseconds` while it saves step after step, each twice. Returns the last step that
/// it reported as saved.
int64_t save_until_killed(const std::filesystem::path& run, int64_t first_step, int64_t microseconds,
                          const Save& save);

/// Runs `save` in a child with a file size limit of `bytes`, which simulates a full disk. Returns the message
/// of its RunError, "" on success.
std::string message_under_limit(uint64_t bytes, const std::function<void()>& save);

}  // namespace hero::test
