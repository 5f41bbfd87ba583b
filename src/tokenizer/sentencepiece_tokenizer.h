// SentencePiece model files. Vocabularies from train_tokenizer are lossless for all valid UTF-8: characters
// without a piece fall back to bytes, and U+2581, which SentencePiece uses for the space, is always encoded
// as three bytes. Text is encoded word by word, through a cache. Words are split between bytes that are not
// adjacent in any piece, so the ids equal those of the whole text.
#pragma once
#include <bitset>
#include <memory>

#include "tokenizer/added_tokens.h"
#include "tokenizer/tokenizer_backend.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace hero {

struct SentencePieceModel;

class SentencePieceTokenizer : public TokenizerBackend {
 public:
  /// `model`: contents of the file; `name`: its name in messages. UserError if it is not a valid model.
  SentencePieceTokenizer(const std::string& model, const std::string& name);
  ~SentencePieceTokenizer() override;

  void encode(std::string_view text, std::vector<int32_t>& ids, WordCache& cache) const override;
  void encode_conversation(std::string_view text, std::vector<int32_t>& ids, WordCache& cache) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  std::string piece(int32_t id) const override;
  std::string bytes(int32_t id) const override;
  int64_t vocab_size() const override { return vocab_size_; }
  int32_t eos_id() const override { return eos_id_; }
  int32_t bos_id() const override;
  bool lossless() const override { return lossless_; }

 private:
  void inspect(const SentencePieceModel& model);
  std::string_view first_word(std::string_view text) const;
  void encode_plain(std::string_view text, std::vector<int32_t>& ids) const;
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const;

  std::unique_ptr<sentencepiece::SentencePieceProcessor> pieces_;
  std::string name_;  // for messages
  int64_t vocab_size_ = 0;
  int32_t eos_id_ = -1;
  bool lossless_ = false;
  std::unique_ptr<AddedTokens> control_;  // control pieces, for conversations
  std::bitset<1 << 16> adjacent_;         // by two bytes: adjacent in a piece
  std::vector<int32_t> space_symbol_;     // byte pieces of U+2581
};

}  // namespace hero
