#pragma once
#include <cstdint>
#include <string>

#include "data/corpus.h"
#include "data/token_files.h"

namespace hero {

struct TokenizeOptions {
  CorpusOptions corpus;
  std::string tokenizer;         // tokenizer file or folder
  std::string out;               // prefix of the output files
  double valid_fraction = 0.01;  // of the documents, [0, 1)
  uint64_t seed = 1234;          // of the split
  int workers = 0;               // 0: all cores
  bool overwrite = false;        // replace existing files
};

struct TokenizeResult {
  TokenFiles files;
  int64_t skipped = 0;  // documents with invalid UTF-8 or JSON
  int64_t empty = 0;    // documents without text, skipped
};

/// Tokenizes documents to OUT-train.bin/.idx and OUT-valid.bin/.idx (one sequence per document, terminated by
/// EOS) and writes the tokenizer (write_tokenizer) and OUT.json. Uses all cores; the result is deterministic.
/// A document goes to the validation set if a hash of seed and document index is below the fraction. The
/// first document is always for training; with two or more, at least one is for validation. Without
/// validation documents (fraction 0, or a single document) there is no OUT-valid. Memory: a few MB of text
/// per worker, or the longest documents. UserError, without writing anything, for invalid input and, unless
/// `overwrite`, if an output file exists; OUT.model or OUT.tokenizer.json may be the same tokenizer.
TokenizeResult tokenize(const TokenizeOptions& options);

}  // namespace hero
