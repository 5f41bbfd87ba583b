// Byte-fallback BPE vocabularies. Words (letters, punctuation, runs of spaces and newlines) are counted here
// on all cores; SentencePiece learns the merges from the counts, so the result depends on neither threads nor
// document order. Memory is the sample plus the counts.
#pragma once
#include <cstdint>
#include <string>

#include "data/corpus.h"

namespace hero {

struct TokenizerTraining {
  CorpusOptions corpus;
  int64_t vocab_size = 0;
  uint64_t seed = 1234;                     // of the sample
  int64_t sample_bytes = int64_t{1} << 26;  // of text to learn from at most
  int workers = 0;                          // 0: all cores
};

struct TrainedTokenizer {
  std::string model;  // the bytes of the model file
  int64_t documents = 0, text_bytes = 0, sampled_bytes = 0, skipped = 0;
};

/// Learns a vocabulary of exactly `vocab_size` pieces: 0 <unk>, 1 </s> (the end of a document), runs of 1, 2
/// and 4 tabs, 256 bytes, and what is learnt; at most half of that are single characters, rarer ones stay
/// bytes. The text is used as it is; digits stay single. UserError for bad input and for sizes that the text
/// cannot fill.
TrainedTokenizer train_tokenizer(const TokenizerTraining& options);

}  // namespace hero
