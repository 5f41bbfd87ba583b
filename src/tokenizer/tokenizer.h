// Text to token ids and back. Two kinds of files serve, told apart by their content: SentencePiece models
// (sentencepiece_tokenizer.h) and Hugging Face's tokenizer.json with byte-level BPE (bpe_tokenizer.h).
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

  /// Reads a tokenizer file, or tokenizer.model or tokenizer.json of a folder (the first that is there), with
  /// what stands beside it: see companions. UserError when there is none, or one that is not understood.
  explicit Tokenizer(const std::string& path);
  /// The file from memory; `name` stands for it in messages.
  Tokenizer(std::string model, const std::string& name);
  Tokenizer(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// The ids of `text` (valid UTF-8), without any token for the begin or end of a document. Thread-safe.
  std::vector<int32_t> encode(std::string_view text) const;
  /// The same, appended to `ids`.
  void encode(std::string_view text, std::vector<int32_t>& ids, Cache& cache) const;

  /// The text of the ids; control pieces and special tokens, such as the end of a document, are invisible,
  /// bytes that form no UTF-8 become U+FFFD. UserError for an id outside the vocabulary.
  std::string decode(std::span<const int32_t> ids) const;

  /// The largest id plus one.
  int64_t vocab_size() const;
  /// The end-of-document id, or -1 when the vocabulary has none.
  int32_t eos_id() const { return eos_id_; }
  /// The begin-of-document id that the file names: SentencePiece's bos_id; -1 for none, and for every
  /// tokenizer.json.
  int32_t bos_id() const;
  /// The piece as the file writes it: SentencePiece has U+2581 for the space and "<0x0A>" for a byte,
  /// byte-level BPE a letter for each byte. "" for an id without a piece. UserError outside the vocabulary.
  std::string piece(int32_t id) const;
  /// What the id adds to a text, wherever it stands in it: part of a character perhaps. "" for control pieces
  /// and special tokens. UserError outside the vocabulary.
  std::string bytes(int32_t id) const;
  /// Whether every UTF-8 text that spells no special token survives encode and decode; false for vocabularies
  /// that normalise or add a prefix.
  bool lossless() const;

  /// The bytes of the tokenizer file, and their SHA-256.
  const std::string& model() const { return model_; }
  std::string hash() const;
  /// Its name in a model folder: "tokenizer.model" or "tokenizer.json".
  const char* file_name() const { return file_name(model_); }
  static const char* file_name(std::string_view model);
  /// Whether a folder holds a file of either name.
  static bool in_folder(const std::string& path);
  /// The files that stood beside a tokenizer.json and belong to it (tokenizer_config.json with the end token,
  /// chat_template.jinja), by name; beside OUT.tokenizer.json, those are OUT.tokenizer_config.json and so on.
  const std::map<std::string, std::string>& companions() const { return companions_; }

 private:
  void open(const std::string& path, const std::string& name);
  void check_id(int32_t id) const;

  std::string model_;
  std::map<std::string, std::string> companions_;
  std::unique_ptr<const TokenizerBackend> backend_;
  int32_t eos_id_ = -1;
};

/// Writes the tokenizer as OUT.model or OUT.tokenizer.json (with companions as OUT.NAME), which Tokenizer
/// reads back the same. Returns the path.
std::string write_tokenizer(const std::string& out, const Tokenizer& tokenizer);

}  // namespace hero
