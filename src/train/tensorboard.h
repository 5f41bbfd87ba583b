// TensorBoard event files: TFRecord framing (u64 length, masked CRC-32C of it, data, masked CRC-32C of the
// data; all little-endian) around tensorflow.Event messages (tensorboard/compat/proto/event.proto), encoded
// without a protobuf library.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

#include "io/append_file.h"

namespace hero {

class TensorBoardLog {
 public:
  /// Continues the folder's newest events.out.tfevents.* file after its last complete record, or creates one
  /// named after time and host. RunError if it cannot be written.
  explicit TensorBoardLog(const std::filesystem::path& folder);

  /// Appends a scalar as fp32. `wall_time`: seconds since 1970. TensorBoard groups tags by the part before a
  /// slash.
  void scalar(std::string_view tag, double value, int64_t step, double wall_time);

  /// Keeps the events of steps <= `step`, unchanged, and replaces the file atomically. Drops everything from
  /// the first damaged record on.
  void truncate_after(int64_t step);

  const std::filesystem::path& path() const { return file_->path(); }

 private:
  std::unique_ptr<AppendFile> file_;
};

}  // namespace hero
