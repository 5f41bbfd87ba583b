// Encodes text to token ids and decodes it. Detects two file formats by content: SentencePiece models
// (sentencepiece_tokenizer.h) and Hugging Face tokenizer.json with byte-level BPE (bpe_tokenizer.h).
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/word_cache.h"

namespace hero {

class TokenizerBackend;

class Tokenizer {
 public:
  using Cache = WordCache;

  /// Reads a tokenizer file, or tokenizer.model or else tokenizer.json of a folder, with its companions.
  /// UserError if there is none or its format is not supported.
  explicit Tokenizer(const std::string& path);
  /// Reads a tokenizer from memory; `name`: its name in messages.
  Tokenizer(std::string model, const std::string& name);
  Tokenizer(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Ids of `text` (valid UTF-8), without BOS or EOS. Thread-safe.
  std::vector<int32_t> encode(std::string_view text) const;
  /// The same, appended to `ids`.
  void encode(std::string_view text, std::vector<int32_t>& ids, Cache& cache) const;

  /// Ids of a conversation that a chat template has rendered: control pieces of a SentencePiece model, such
  /// as
  /// </s>, become their ids too, as tokens of a tokenizer.json always do.
  std::vector<int32_t> encode_conversation(std::string_view text) const;

  /// Text of the ids. Omits control pieces and special tokens such as EOS, and replaces invalid UTF-8 with
  /// U+FFFD. UserError for an id outside the vocabulary.
  std::string decode(std::span<const int32_t> ids) const;

  /// The largest id plus one.
  int64_t vocab_size() const;
  /// The end-of-document (EOS) id, or -1.
  int32_t eos_id() const { return eos_id_; }
  /// The begin-of-document (BOS) id of a SentencePiece model, or -1; always -1 for tokenizer.json.
  int32_t bos_id() const;
  /// The piece as written in the file: SentencePiece uses U+2581 for the space and "<0x0A>" for a byte,
  /// byte-level BPE one character per byte. "" for an id without a piece. UserError outside the vocabulary.
  std::string piece(int32_t id) const;
  /// Decoded bytes of the id, independent of context; possibly part of a character. "" for control pieces and
  /// special tokens. UserError outside the vocabulary.
  std::string bytes(int32_t id) const;
  /// Whether decode(encode(text)) == text for all UTF-8 text without special tokens; false for vocabularies
  /// that normalize or add a prefix.
  bool lossless() const;

  /// Contents of the tokenizer file, and their SHA-256.
  const std::string& model() const { return model_; }
  std::string hash() const;
  /// File name in a model folder: "tokenizer.model" or "tokenizer.json".
  const char* file_name() const { return file_name(model_); }
  static const char* file_name(std::string_view model);
  /// Whether a folder contains a tokenizer file.
  static bool in_folder(const std::string& path);
  /// Companion files by name (companions.h): of a tokenizer.json tokenizer_config.json with the EOS token and
  /// chat_template.jinja, of a SentencePiece model chat_template.jinja.
  const std::map<std::string, std::string>& companions() const { return companions_; }

 private:
  void open(const std::string& path, const std::string& name);
  void check_id(int32_t id) const;

  std::string model_;
  std::map<std::string, std::string> companions_;
  std::unique_ptr<const TokenizerBackend> backend_;
  int32_t eos_id_ = -1;
};

/// OUT.model or OUT.tokenizer.json.
std::string tokenizer_path(const std::string& out, const Tokenizer& tokenizer);

/// Writes the tokenizer to tokenizer_path (with companions as OUT.NAME). Returns the path.
std::string write_tokenizer(const std::string& out, const Tokenizer& tokenizer);

}  // namespace hero
