// Metadata that hero data tokenize writes next to its token files: OUT.json (counts, vocabulary) and
// OUT.model or OUT.tokenizer.json (the tokenizer). Datasets of other programs have neither.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace hero {

struct SplitCounts {
  int64_t documents = 0;
  int64_t tokens = 0;  // including EOS tokens
  int64_t bytes = 0;   // of UTF-8 text
};

struct TokenFiles {
  std::string tokenizer;  // path of OUT.model or OUT.tokenizer.json
  std::string tokenizer_sha256;
  int64_t vocab_size = 0;
  int64_t eos_id = 0;                         // ends every document
  std::map<std::string, SplitCounts> splits;  // "train", and "valid" if present
};

/// UserError if there are OUT.model and OUT.tokenizer.json, where `written` counts as present: one of them is
/// not the tokenizer of the tokens.
void check_one_tokenizer(const std::string& out, const std::string& written = "");

/// Writes OUT.json.
void write_token_files(const std::string& out, const TokenFiles& files);

/// Reads the metadata of `prefix` (OUT, OUT-train or OUT-valid, with or without .bin or .idx); nullopt
/// without OUT.json. UserError for an invalid OUT.json, also if it names a tokenizer in another folder, and
/// for two tokenizers.
std::optional<TokenFiles> read_token_files(const std::string& prefix);

/// The metadata of the first of these sources that has some.
std::optional<TokenFiles> first_token_files(const std::vector<std::string>& prefixes);

}  // namespace hero
