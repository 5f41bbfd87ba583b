// SentencePiece model files. For vocabularies made by train_tokenizer every valid UTF-8 text survives encode
// and decode byte for byte: what has no piece falls back to bytes, and U+2581, which SentencePiece itself
// uses for the space, is always written as its three bytes. Text is encoded word by word, through a cache; a
// word ends between two bytes that stand side by side in no piece of the vocabulary, so the ids are those of
// the whole text.
#pragma once
#include <bitset>
#include <memory>

#include "tokenizer/tokenizer_backend.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace hero {

class SentencePieceTokenizer : public TokenizerBackend {
 public:
  /// `model`: the bytes of the file; `name` stands for it in messages. UserError when they are no model.
  SentencePieceTokenizer(const std::string& model, const std::string& name);
  ~SentencePieceTokenizer() override;

  void encode(std::string_view text, std::vector<int32_t>& ids, WordCache& cache) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  std::string piece(int32_t id) const override;
  std::string bytes(int32_t id) const override;
  int64_t vocab_size() const override { return vocab_size_; }
  int32_t eos_id() const override { return eos_id_; }
  int32_t bos_id() const override;
  bool lossless() const override { return lossless_; }

 private:
  void inspect();
  std::string_view first_word(std::string_view text) const;
  void encode_plain(std::string_view text, std::vector<int32_t>& ids) const;
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const;

  std::unique_ptr<sentencepiece::SentencePieceProcessor> pieces_;
  int64_t vocab_size_ = 0;
  int32_t eos_id_ = -1;
  bool lossless_ = false;
  std::bitset<1 << 16> joined_;        // by two bytes: side by side in some piece
  std::vector<int32_t> space_symbol_;  // the byte pieces of U+2581
};

}  // namespace hero
