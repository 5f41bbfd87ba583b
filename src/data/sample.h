#pragma once
#include <cstdint>

namespace hero {

/// Where a training sample is written: arrays of sequence + 1 entries per sample. Null: not wanted.
struct SampleOut {
  int64_t* tokens;
  /// Index within the sample of the first token of each token's document; 0 for a document that began in an
  /// earlier sample. An EOS token belongs to the document that it ends.
  int64_t* starts = nullptr;
};

}  // namespace hero
