// JSON Lines logs of a run (metrics.jsonl, routing.jsonl): one object per step, readable during the run.
// Numbers are written with enough digits to be read back exactly; non-finite values are null.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "io/append_file.h"

namespace hero {

/// The last complete line of a log; null if there is none or it has no integer `step`. RunError if the file
/// cannot be read.
nlohmann::json last_logged_line(const std::filesystem::path& path);

class MetricsLog {
 public:
  /// Appends to the file, after removing an incomplete last line. RunError if it cannot be written.
  explicit MetricsLog(const std::filesystem::path& path);

  /// Appends one object with an integer key `step`, keeping the order of keys. RunError on a full disk; then
  /// nothing is written.
  void append(const nlohmann::ordered_json& line);

  /// Adds keys to the last line and replaces the file atomically. A warning if it is not that of `step`.
  void add_to_last(int64_t step, const nlohmann::ordered_json& values);

  /// Keeps the lines of steps <= `step`, unchanged, and replaces the file atomically. Removes a damaged last
  /// line. Other lines that are not an object with an integer `step` are removed with a warning, after the
  /// file was copied to NAME.damaged.
  void truncate_after(int64_t step);

 private:
  AppendFile file_;
};

}  // namespace hero
