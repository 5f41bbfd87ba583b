#pragma once
#include <cstdint>
#include <string>

#include "data/corpus.h"
#include "data/token_files.h"

namespace hero {

struct TokenizeOptions {
  CorpusOptions corpus;
  std::string tokenizer;         // what Tokenizer reads
  std::string out;               // prefix of what is written
  double valid_fraction = 0.01;  // of the documents, [0, 1)
  uint64_t seed = 1234;          // of the split
  int workers = 0;               // 0: all cores
};

struct TokenizeResult {
  TokenFiles files;
  int64_t skipped = 0;  // no UTF-8 text
  int64_t empty = 0;    // without text, left out
};

/// Turns documents into OUT-train.bin/.idx and OUT-valid.bin/.idx (one sequence a document, closed by the
/// end-of-document id), the tokenizer (write_tokenizer) and OUT.json, on all cores; the files depend on
/// neither thread count nor timing. A document is for validation when a hash of seed and document number
/// falls below the fraction; the first document always trains, and of two or more at least one validates.
/// Without validation documents (fraction 0, or a single document) there is no OUT-valid. Memory: a few MB of
/// text a worker, or the longest documents. UserError for wrong input; nothing is written then.
TokenizeResult tokenize(const TokenizeOptions& options);

}  // namespace hero
