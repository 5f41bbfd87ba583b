// JSON Lines logs of a run (metrics.jsonl, routing.jsonl): one object a step, readable while the run goes on.
// Numbers are written with the digits that read back bit-equal; what is not finite is null.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "io/append_file.h"

namespace hero {

class MetricsLog {
 public:
  /// Goes on at the end of the file, after dropping a line that a killed process tore. RunError if it cannot
  /// be written.
  explicit MetricsLog(const std::filesystem::path& path);

  /// One object, `step` (an integer) among its keys, in the order given. RunError on a full disk: the line is
  /// then not there at all.
  void append(const nlohmann::ordered_json& line);

  /// Keeps exactly the lines of steps <= `step`, unchanged, replacing the file atomically. A torn last line
  /// goes; any other line that is no object with an integer `step` is a UserError naming file and line.
  void cut_to(int64_t step);

 private:
  AppendFile file_;
};

}  // namespace hero
