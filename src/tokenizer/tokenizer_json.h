// What a Hugging Face tokenizer.json of the byte-level BPE kind says. It may hold: the normalizers NFC, NFD,
// NFKC, NFKD and Lowercase; the pre-tokenizers Split, Digits and Punctuation, and ByteLevel as the last one;
// the model BPE without dropout, byte fallback and affixes; the decoder ByteLevel. Post-processors only add
// tokens that hero leaves out.
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
  std::unordered_map<std::string, int32_t> vocab;  // of the model, in letters of bytes
  std::vector<BpeMerges::Merge> merges;            // in the order of their ranks
  std::string unknown;                             // the token for bytes that have none, "" without
  bool fuse_unknown = false;
  bool ignore_merges = false;     // a word that is a token stays whole
  std::vector<AddedToken> added;  // with their ids
  std::vector<TextNormalizer::Form> normalizer;
  PreTokenizer pre_tokenizer;
};

/// `text`: the file's content; `file` stands for it in messages. UserError for what is broken, and by name
/// for what is another kind.
TokenizerJson read_tokenizer_json(const std::string& text, const std::string& file);

}  // namespace hero
