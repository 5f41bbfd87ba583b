#include "checkpoint/writer.h"

#include <ATen/ATen.h>

#include <utility>

#include "checkpoint/shards.h"
#include "io/error.h"

namespace fs = std::filesystem;

namespace hero {
namespace {

constexpr std::string_view kDone = "done ", kFailed = "failed ";

// What a piece of work says when it fails; "" when it does not.
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

CheckpointWriter::CheckpointWriter(Voices voices, fs::path run, int keep, size_t max_shard_bytes)
    : voices_(std::move(voices)), run_(std::move(run)), keep_(keep), max_shard_bytes_(max_shard_bytes) {}

void CheckpointWriter::save(int64_t step, const CheckpointContents& contents, bool wait) {
  finish();
  const int64_t number = saves_++;
  if (wait) {
    write(number, step, copied(contents, /*all=*/false));
    return;
  }
  writing_ = std::async(std::launch::async, [this, number, step, copy = copied(contents, /*all=*/true)] {
    write(number, step, copy);
  });
}

void CheckpointWriter::finish() {
  if (writing_.valid()) writing_.get();
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

void CheckpointWriter::write(int64_t number, int64_t step, const CheckpointContents& contents) const {
  const std::string key = "checkpoint/" + std::to_string(number) + "/step-" + std::to_string(step) + "/";
  const fs::path folder = checkpoint_folder(run_, step);
  const std::string failure = voices_.rank == 0 ? lead(key, folder, contents) : follow(key, folder, contents);
  if (!failure.empty()) throw RunError(failure);
}

// Both return why there is no checkpoint, or "". Rank 0 answers twice: when the folder is there to be written
// into, and when all is over.
std::string CheckpointWriter::lead(const std::string& key, const fs::path& folder,
                                   const CheckpointContents& contents) const {
  std::string failures;
  const auto attempt = [&](int64_t rank, auto&& work) {
    const std::string failure = failure_of(work);
    if (failure.empty()) return;
    if (!failures.empty()) failures += "; ";
    if (voices_.size > 1) failures += "rank " + std::to_string(rank) + ": ";
    failures += failure;
  };
  const auto answer = [&](const char* about, const std::string& failure) {
    if (voices_.size > 1) voices_.tell(key + about, failure);
    return failure;
  };
  const auto give_up = [&] {
    std::error_code ignored;
    fs::remove_all(unfinished_folder(folder), ignored);
    return "cannot save checkpoint " + folder.string() + ": " + failures + "; earlier checkpoints are intact";
  };

  attempt(0, [&] { start_checkpoint(folder); });
  if (!failures.empty()) return answer("begin", give_up());
  answer("begin", "");
  const fs::path unfinished = unfinished_folder(folder);
  WrittenFiles written;
  attempt(0, [&] { written = write_tensors(unfinished, contents, 0, voices_.size, max_shard_bytes_); });
  for (int64_t rank = 1; rank < voices_.size; ++rank) {
    attempt(rank, [&] {
      const std::string word = voices_.hear(key + std::to_string(rank));
      if (word.starts_with(kFailed)) throw RunError(word.substr(kFailed.size()));
      written.add(WrittenFiles::parse(word.substr(kDone.size())));
    });
  }
  if (failures.empty()) {
    attempt(0, [&] {
      write_rest(unfinished, contents, std::move(written));
      publish_checkpoint(folder);
    });
  }
  if (!failures.empty()) return answer("end", give_up());
  attempt(0, [&] { settle_checkpoint(folder, keep_); });
  if (failures.empty()) return answer("end", "");
  return answer("end",
                "checkpoint " + folder.string() + " is written, but old ones may be left: " + failures);
}

std::string CheckpointWriter::follow(const std::string& key, const fs::path& folder,
                                     const CheckpointContents& contents) const {
  if (std::string failure = voices_.hear(key + "begin"); !failure.empty()) return failure;
  WrittenFiles written;
  const std::string failure = failure_of([&] {
    written =
        write_tensors(unfinished_folder(folder), contents, voices_.rank, voices_.size, max_shard_bytes_);
  });
  voices_.tell(key + std::to_string(voices_.rank),
               failure.empty() ? std::string(kDone) + written.text() : std::string(kFailed) + failure);
  return voices_.hear(key + "end");
}

fs::path save_checkpoint(const fs::path& run, int64_t step, const CheckpointContents& contents, int keep,
                         size_t max_shard_bytes) {
  CheckpointWriter({}, run, keep, max_shard_bytes).save(step, contents, /*wait=*/true);
  return checkpoint_folder(run, step);
}

}  // namespace hero
