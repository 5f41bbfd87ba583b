// Contents of a Hugging Face tokenizer.json with byte-level BPE. Supported: normalizers NFC, NFD, NFKC, NFKD
// and Lowercase; pre-tokenizers Split, Digits and Punctuation, with ByteLevel last; model BPE without
// dropout, byte fallback and affixes; decoder ByteLevel. Post-processors are ignored: they only add special
// tokens.
#pragma once
#include <string>
#include <unordered_map>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe_merges.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/text_normalizer.h"

namespace hero {

struct TokenizerJson {
  std::unordered_map<std::string, int32_t> vocab;  // of the model, in byte-level characters
  std::vector<BpeMerges::Merge> merges;            // by rank
  std::string unknown;                             // token for bytes without a token; "": none
  bool fuse_unknown = false;
  bool ignore_merges = false;     // words in the vocabulary are not merged
  std::vector<AddedToken> added;  // with their ids
  std::vector<TextNormalizer::Form> normalizer;
  PreTokenizer pre_tokenizer;
};

/// `text`: contents of the file; `file`: its name in messages. UserError for invalid files and, by name, for
/// unsupported features.
TokenizerJson read_tokenizer_json(const std::string& text, const std::string& file);

}  // namespace hero
