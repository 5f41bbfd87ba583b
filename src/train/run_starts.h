#pragma once
// starts.jsonl of a run folder: a line for the start of the run and for every resume, with the data, the
// tokenizer, and the options and token files that changed since the checkpoint. The first line of a branch
// names its parent. Lines are only appended: one replaces those before it with the same or a later step,
// whose training was discarded.
#include <cstdint>
#include <filesystem>

#include "train/run_folder.h"

namespace hero {

constexpr const char* kStartsFile = "starts.jsonl";

/// The step after the checkpoint; 1 without one.
int64_t first_step(const Run& run);

/// Appends the line of this start and writes the changes to stderr. Call it before config.toml is replaced.
/// RunError.
void record_start(const std::filesystem::path& folder, const Run& run);

}  // namespace hero
