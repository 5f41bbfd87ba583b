// TensorBoard event files: TFRecord framing (u64 length, masked CRC-32C of it, data, masked CRC-32C of the
// data; all little-endian) around tensorflow.Event messages (tensorboard/compat/proto/event.proto), encoded
// by hand.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

#include "io/append_file.h"

namespace hero {

class TensorBoardLog {
 public:
  /// Continues the folder's newest events.out.tfevents.* file after its last whole record, or starts one
  /// named after the time and the host. RunError if it cannot be written.
  explicit TensorBoardLog(const std::filesystem::path& folder);

  /// One scalar, stored as a 32-bit float. `wall_time` in seconds since 1970. Names with a slash are grouped.
  void scalar(std::string_view tag, double value, int64_t step, double wall_time);

  /// Keeps exactly the events of steps <= `step`, unchanged, replacing the file atomically. What follows a
  /// broken record cannot be read by anybody and goes too.
  void cut_to(int64_t step);

  const std::filesystem::path& path() const { return file_->path(); }

 private:
  std::unique_ptr<AppendFile> file_;
};

}  // namespace hero
