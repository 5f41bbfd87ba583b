#pragma once
#include <cstdint>

namespace hero {

/// Where a training sample is written: arrays of sequence + 1 entries per sample. Null: not wanted.
struct SampleOut {
  int64_t* tokens;
  /// Index within the sample of the first token of each token's document; for a document that began in an
  /// earlier sample, that of its first token here. Padding is a document of its own. An EOS token belongs to
  /// the document that it ends.
  int64_t* starts = nullptr;
  int64_t* trained = nullptr;  ///< 1 if token i is trained on where it is a target (i > 0), else 0
};

}  // namespace hero
