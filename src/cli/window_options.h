#pragma once
#include <cstdint>
#include <vector>

#include "cli/command.h"

namespace hero {

/// Adds --batch and --sequence of the commands that evaluate windows of tokens, and returns them. 0 for
/// `sequence`: train.sequence of the model.
inline std::vector<Option> add_window_options(Command& command, int64_t& batch, int64_t& sequence) {
  return {command.add_option("--batch", batch, "batch size in sequences").range(1, 1 << 16).show_default(),
          command
              .add_option("--sequence", sequence,
                          "window length in tokens; 0: as in training, or at most 512 if unknown")
              .range(0, 1 << 30)
              .show_default()};
}

}  // namespace hero
