#include "checkpoint/writer.h"

#include <ATen/ATen.h>

#include <utility>

#include "checkpoint/shards.h"
#include "io/error.h"

namespace fs = std::filesystem;

namespace hero {
namespace {

constexpr std::string_view kDone = "done ", kFailed = "failed ";

// Runs `work` and returns its error message, or "" on success.
template <typename Work>
std::string failure_of(Work&& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace

CheckpointWriter::CheckpointWriter(StoreClient store_client, fs::path run, int keep, size_t max_shard_bytes)
    : store_client_(std::move(store_client)),
      run_(std::move(run)),
      keep_(keep),
      max_shard_bytes_(max_shard_bytes) {}

void CheckpointWriter::save(int64_t step, const CheckpointContents& contents, bool wait) {
  finish();
  writing_ = std::async(wait ? std::launch::deferred : std::launch::async,
                        [this, number = saves_++, step, retention = retention_,
                         copy = copied(contents, /*all=*/!wait)] { write(number, step, retention, copy); });
  if (wait) finish();
}

void CheckpointWriter::finish() {
  if (!writing_.valid()) return;
  ++failures_;
  writing_.get();
  failures_ = 0;
}

CheckpointContents CheckpointWriter::copied(const CheckpointContents& contents, bool all) {
  CheckpointContents result = contents;
  size_t count = 0;
  const auto copy = [&](at::Tensor& tensor) {
    if (tensor.is_cpu() && !all) return;
    if (count == copies_.size()) copies_.emplace_back();
    at::Tensor& mine = copies_[count++];
    if (!mine.defined() || mine.sizes() != tensor.sizes() || mine.scalar_type() != tensor.scalar_type())
      mine = at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
    mine.copy_(tensor);
    tensor = mine;
  };
  for (auto& [name, tensor] : result.model) copy(tensor);
  for (auto& [name, tensor] : result.optimizer) copy(tensor);
  for (auto& slice : result.model_slices) copy(slice.values);
  return result;
}

void CheckpointWriter::write(int64_t number, int64_t step, Retention retention,
                             const CheckpointContents& contents) const {
  const std::string key = "checkpoint/" + std::to_string(number) + "/step-" + std::to_string(step) + "/";
  const std::string failure = store_client_.rank == 0
                                  ? write_as_rank_zero(key, step, retention, contents)
                                  : write_as_other_rank(key, checkpoint_folder(run_, step), contents);
  if (!failure.empty()) throw SaveError(failure);
}

// Both return the reason why there is no checkpoint, or "". Rank 0 replies twice: when the folder exists, and
// at the end.
std::string CheckpointWriter::write_as_rank_zero(const std::string& key, int64_t step, Retention retention,
                                                 const CheckpointContents& contents) const {
  const fs::path folder = checkpoint_folder(run_, step);
  std::string failures;
  const auto attempt = [&](int64_t rank, auto&& work) {
    const std::string failure = failure_of(work);
    if (failure.empty()) return;
    if (!failures.empty()) failures += "; ";
    if (store_client_.world_size > 1) failures += "rank " + std::to_string(rank) + ": ";
    failures += failure;
  };
  const auto reply = [&](const char* phase, const std::string& failure) {
    if (store_client_.world_size > 1) store_client_.set(key + phase, failure);
    return failure;
  };
  const auto abandon = [&] {
    std::error_code ignored;
    fs::remove_all(unfinished_folder(folder), ignored);
    return "cannot save checkpoint " + folder.string() + ": " + failures + "; earlier checkpoints are intact";
  };

  const auto prune = [&] { prune_checkpoints(run_, keep_, step, retention.verified, retention.best); };

  failure_of(prune);  // makes room; the second call reports a failure
  attempt(0, [&] { start_checkpoint(folder); });
  if (!failures.empty()) return reply("begin", abandon());
  reply("begin", "");
  const fs::path unfinished = unfinished_folder(folder);
  WrittenFiles written;
  attempt(0, [&] {
    written = write_tensors(unfinished, contents, 0, store_client_.world_size, max_shard_bytes_);
  });
  for (int64_t rank = 1; rank < store_client_.world_size; ++rank) {
    attempt(rank, [&] {
      const std::string message = store_client_.get(key + std::to_string(rank));
      if (message.starts_with(kFailed)) throw RunError(message.substr(kFailed.size()));
      written.add(WrittenFiles::parse(message.substr(kDone.size())));
    });
  }
  if (failures.empty()) {
    attempt(0, [&] {
      write_common_files(unfinished, contents, std::move(written));
      publish_checkpoint(folder);
    });
  }
  if (!failures.empty()) return reply("end", abandon());
  attempt(0, [&] {
    finalize_checkpoint(folder);
    prune();
  });
  if (failures.empty()) return reply("end", "");
  return reply("end", "checkpoint " + folder.string() + " is saved, but old ones may remain: " + failures);
}

std::string CheckpointWriter::write_as_other_rank(const std::string& key, const fs::path& folder,
                                                  const CheckpointContents& contents) const {
  if (std::string failure = store_client_.get(key + "begin"); !failure.empty()) return failure;
  WrittenFiles written;
  const std::string failure = failure_of([&] {
    written = write_tensors(unfinished_folder(folder), contents, store_client_.rank, store_client_.world_size,
                            max_shard_bytes_);
  });
  store_client_.set(key + std::to_string(store_client_.rank),
                    failure.empty() ? std::string(kDone) + written.text() : std::string(kFailed) + failure);
  return store_client_.get(key + "end");
}

}  // namespace hero
