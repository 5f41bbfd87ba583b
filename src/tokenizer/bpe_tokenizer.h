// Hugging Face tokenizer.json files with byte-level BPE (GPT-2, Qwen, Llama 3, DeepSeek V3). The ids are
// those of tokenizers' `encode(text, add_special_tokens=False)`: added tokens that the text spells become
// their ids. Characters that Unicode assigned after version 14.0 (PCRE2 10.42's) may be split otherwise.
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
  /// `json`: the content of the file; `name` stands for it in messages. UserError as read_tokenizer_json.
  BpeTokenizer(const std::string& json, const std::string& name);

  void encode(std::string_view text, std::vector<int32_t>& ids, WordCache& cache) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  std::string piece(int32_t id) const override { return pieces_[id]; }
  std::string bytes(int32_t id) const override { return texts_[id]; }
  int32_t bos_id() const override { return -1; }
  int64_t vocab_size() const override { return static_cast<int64_t>(pieces_.size()); }
  /// The first of the usual end tokens among the added ones, or -1.
  int32_t eos_id() const override;
  bool lossless() const override { return lossless_; }

  /// The id of a piece or added token, as the file writes it.
  std::optional<int32_t> id_of(const std::string& piece) const;

 private:
  BpeTokenizer(TokenizerJson json, const std::string& name);
  void encode_section(std::string_view text, std::vector<int32_t>& ids, WordCache& cache,
                      PreTokenizer::Scratch& scratch) const;

  std::vector<std::string> pieces_;  // by id; "" where there is none
  std::vector<std::string> texts_;   // by id: the bytes it stands for, "" for special tokens
  std::unordered_map<std::string, int32_t> ids_;
  TextNormalizer normalizer_;
  std::unique_ptr<AddedTokens> added_, added_normalized_;  // looked for before and after normalising
  PreTokenizer pre_tokenizer_;
  std::unique_ptr<BpeMerges> merges_;
  std::unordered_map<std::string, int32_t> words_;  // words that stay whole, as bytes
  std::vector<std::string> added_contents_;
  bool lossless_ = true;
};

}  // namespace hero
