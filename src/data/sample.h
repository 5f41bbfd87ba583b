#pragma once
#include <cstdint>

namespace hero {

/// Where a training sample is written: arrays of sequence + 1 entries, null for what is not needed.
struct SampleOut {
  int64_t* tokens;
  int64_t* starts = nullptr;   ///< index of the first token of token i's document within the sequence
  int64_t* trained = nullptr;  ///< 1 if token i is trained on where it is a target (i > 0), else 0
};

}  // namespace hero
