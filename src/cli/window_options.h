#pragma once
#include <cstdint>

#include "cli/command.h"

namespace hero {

/// Adds --batch and --sequence of the commands that evaluate windows of tokens. 0 for `sequence`:
/// train.sequence of the model.
inline void add_window_options(Command& command, int64_t& batch, int64_t& sequence) {
  command.add_option("--batch", batch, "batch size in sequences").range(1, 1 << 16).show_default();
  command
      .add_option("--sequence", sequence,
                  "window length in tokens; 0: as in training, or at most 512 if unknown")
      .range(0, 1 << 30)
      .show_default();
}

}  // namespace hero
