// Trains byte-fallback BPE vocabularies. Words (letters, punctuation, runs of spaces and newlines) are
// counted on all cores; SentencePiece learns the merges from the counts, so the result does not depend on
// threads or document order. Memory: the sample and the counts.
#pragma once
#include <cstdint>
#include <string>

#include "data/corpus.h"

namespace hero {

struct TokenizerTraining {
  CorpusOptions corpus;
  int64_t vocab_size = 0;
  uint64_t seed = 1234;                     // of the sample
  int64_t sample_bytes = int64_t{1} << 26;  // maximum training text
  int workers = 0;                          // 0: all cores
};

struct TrainedTokenizer {
  std::string model;  // contents of the model file
  int64_t documents = 0, text_bytes = 0, sampled_bytes = 0, skipped = 0;
};

/// Trains a vocabulary of exactly `vocab_size` pieces: 0 <unk>, 1 </s> (EOS), runs of 1, 2 and 4 tabs, 256
/// bytes, and learned pieces. At most half of these are single characters; rarer characters fall back to
/// bytes. No text normalization; every digit is a piece. UserError for invalid input and for vocabulary sizes
/// that the text cannot fill.
TrainedTokenizer train_tokenizer(const TokenizerTraining& options);

}  // namespace hero
