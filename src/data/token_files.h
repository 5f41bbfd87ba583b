// What hero data tokenize leaves beside its token files: OUT.json (counts, vocabulary) and OUT.model or
// OUT.tokenizer.json (the tokenizer), so that training finds both. Corpora prepared elsewhere have neither.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace hero {

struct SplitCounts {
  int64_t documents = 0;
  int64_t tokens = 0;  // with the end-of-document tokens
  int64_t bytes = 0;   // of UTF-8 text
};

struct TokenFiles {
  std::string tokenizer;  // the path of OUT.model or OUT.tokenizer.json
  std::string tokenizer_sha256;
  int64_t vocab_size = 0;
  int64_t eos_id = 0;                         // ends every document
  std::map<std::string, SplitCounts> splits;  // "train", and "valid" where there is one
};

/// Writes OUT.json.
void write_token_files(const std::string& out, const TokenFiles& files);

/// What stands beside `prefix` (OUT, OUT-train or OUT-valid, with or without .bin or .idx); nothing when
/// there is no OUT.json. UserError when OUT.json is broken.
std::optional<TokenFiles> read_token_files(const std::string& prefix);

}  // namespace hero
