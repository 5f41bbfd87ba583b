#pragma once
// The checkpoint with the lowest validation loss (checkpoint.keep_best) and best.json, which names it in the
// run folder.
#include <filesystem>

#include "train/run_folder.h"

namespace hero {

constexpr const char* kBestFile = "best.json";

/// Whether a resumed run continues to compare with its best checkpoint so far: it exists, and its loss is
/// that of the same validation data and eval.batches.
bool is_comparable_best(const Run& run, const std::filesystem::path& folder, const BestCheckpoint& best);

/// Writes best.json, or removes it if there is no best checkpoint.
void record_best(const std::filesystem::path& folder, const BestCheckpoint& best);

}  // namespace hero
