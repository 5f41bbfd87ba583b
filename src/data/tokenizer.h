// Text to token ids and back over SentencePiece. For vocabularies made by train_tokenizer every valid UTF-8
// text survives encode and decode byte for byte: what has no piece falls back to bytes, and U+2581, which
// SentencePiece itself uses for the space, is always written as its three bytes. Text is encoded word by
// word, through a cache; a word ends between two bytes that stand side by side in no piece of the vocabulary,
// so the ids are those of the whole text.
#pragma once
#include <bitset>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace hero {

class Tokenizer {
 public:
  /// Ids of words met before. One per thread; bounded, emptied when full.
  class Cache {
   private:
    friend class Tokenizer;
    struct Hash : std::hash<std::string_view> {
      using is_transparent = void;
    };
    struct Slice {
      uint32_t begin, count;
    };
    std::unordered_map<std::string, Slice, Hash, std::equal_to<>> words_;
    std::vector<int32_t> ids_;
  };

  /// Reads a SentencePiece model file. UserError when it is missing or is none.
  explicit Tokenizer(const std::string& path);
  /// The model from memory; `name` stands for it in messages.
  Tokenizer(std::string model, const std::string& name);
  ~Tokenizer();

  /// The ids of `text` (valid UTF-8), without an end-of-document id. Thread-safe.
  std::vector<int32_t> encode(std::string_view text) const;
  /// The same, appended to `ids`.
  void encode(std::string_view text, std::vector<int32_t>& ids, Cache& cache) const;

  /// The text of the ids; control pieces such as the end of a document are invisible, bytes that form no
  /// UTF-8 become U+FFFD. UserError for an id outside the vocabulary.
  std::string decode(std::span<const int32_t> ids) const;

  int64_t vocab_size() const { return vocab_size_; }
  /// The end-of-document id, or -1 when the vocabulary has none.
  int32_t eos_id() const { return eos_id_; }
  /// The piece as SentencePiece writes it (U+2581 for the space, "<0x0A>" for a byte). UserError outside the
  /// vocabulary.
  std::string piece(int32_t id) const;
  /// Whether every UTF-8 text survives encode and decode; false for vocabularies that normalise or add a
  /// prefix.
  bool lossless() const { return lossless_; }

  /// The bytes of the model file, and their SHA-256.
  const std::string& model() const { return model_; }
  std::string hash() const;

 private:
  void inspect();
  void check_id(int32_t id) const;
  std::string_view first_word(std::string_view text) const;
  void encode_plain(std::string_view text, std::vector<int32_t>& ids) const;
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const;

  std::string model_;
  std::unique_ptr<sentencepiece::SentencePieceProcessor> pieces_;
  int64_t vocab_size_ = 0;
  int32_t eos_id_ = -1;
  bool lossless_ = false;
  std::bitset<1 << 16> joined_;        // by two bytes: side by side in some piece
  std::vector<int32_t> space_symbol_;  // the byte pieces of U+2581
};

}  // namespace hero
