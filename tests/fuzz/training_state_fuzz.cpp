// state.json of a checkpoint.
#include "checkpoint/state_file.h"
#include "fuzz/checks.h"
#include "fuzz/targets.h"

namespace hero::fuzz {

bool read_training_state(std::string_view bytes) {
  return accepted(bytes, [](std::string_view file) {
    const StateFile state = parse_state(file, kFile);
    require(state.step >= 0 && state.tokens >= 0 && state.samples >= 0, "a negative counter");
    require(state.skips.skipped >= 0 && state.eos >= -1, "a negative counter");
  });
}

}  // namespace hero::fuzz
