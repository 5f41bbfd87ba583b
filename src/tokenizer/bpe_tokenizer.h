// Hugging Face tokenizer.json files with byte-level BPE (GPT-2, Qwen, Llama 3, DeepSeek V3). Ids equal those
// of tokenizers' `encode(text, add_special_tokens=False)`, which matches added tokens in the text. Characters
// added after Unicode 14.0 (the version of PCRE2 10.42) may be split differently.
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <unordered_map>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe_merges.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/text_normalizer.h"
#include "tokenizer/tokenizer_backend.h"

namespace hero {

struct TokenizerJson;

class BpeTokenizer : public TokenizerBackend {
 public:
  /// `json`: contents of the file; `name`: its name in messages. UserError like read_tokenizer_json.
  BpeTokenizer(const std::string& json, const std::string& name);

  void encode(std::string_view text, std::vector<int32_t>& ids, WordCache& cache) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  std::string piece(int32_t id) const override { return pieces_[id]; }
  std::string bytes(int32_t id) const override { return texts_[id]; }
  int32_t bos_id() const override { return -1; }
  int64_t vocab_size() const override { return static_cast<int64_t>(pieces_.size()); }
  /// The first common EOS token among the added tokens, or -1.
  int32_t eos_id() const override;
  bool lossless() const override { return lossless_; }

  /// The id of a piece or added token, as written in the file.
  std::optional<int32_t> id_of(const std::string& piece) const;

 private:
  BpeTokenizer(TokenizerJson json, const std::string& name);
  void encode_section(std::string_view text, std::vector<int32_t>& ids, WordCache& cache,
                      PreTokenizer::Scratch& scratch) const;

  std::vector<std::string> pieces_;  // by id; "" for unused ids
  std::vector<std::string> texts_;   // by id: decoded bytes, "" for special tokens
  std::unordered_map<std::string, int32_t> ids_;
  TextNormalizer normalizer_;
  std::unique_ptr<AddedTokens> added_, added_normalized_;  // matched before and after normalization
  PreTokenizer pre_tokenizer_;
  std::unique_ptr<BpeMerges> merges_;
  std::unordered_map<std::string, int32_t> words_;  // words that are not merged (ignore_merges), as bytes
  std::vector<std::string> added_contents_;
  bool lossless_ = true;
};

}  // namespace hero
