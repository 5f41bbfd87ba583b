#include "tokenizer/tokenizer.h"

#include <filesystem>

#include "io/error.h"
#include "io/file_io.h"
#include "io/sha256.h"
#include "tokenizer/bpe_tokenizer.h"
#include "tokenizer/companions.h"
#include "tokenizer/eos_token.h"
#include "tokenizer/sentencepiece_tokenizer.h"

namespace hero {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kJsonName = "tokenizer.json";

// A SentencePiece model starts with a protobuf field key, not "{".
bool is_json(std::string_view bytes) {
  const auto begin = bytes.find_first_not_of(" \t\r\n");
  return begin != bytes.npos && bytes[begin] == '{';
}

// Path of the tokenizer file in a folder, or "".
std::string find_tokenizer_file(const fs::path& folder) {
  for (const char* const name : {"tokenizer.model", "tokenizer.json"}) {
    if (fs::is_regular_file(folder / name)) return (folder / name).string();
  }
  return "";
}

std::string resolve_file(const std::string& path) {
  if (!fs::is_directory(path)) return path;
  const std::string file = find_tokenizer_file(path);
  if (file.empty())
    throw UserError(path +
                    ": found a folder without tokenizer.model and tokenizer.json, expected one of them");
  return file;
}

}  // namespace

Tokenizer::Tokenizer(const std::string& path) {
  const std::string file = resolve_file(path);
  model_ = read_file(file);
  // A tokenizer.json of another name has none: their names would begin with its whole name.
  if (!is_json(model_) || file.ends_with(kJsonName)) companions_ = read_companions(file);
  if (!is_json(model_)) companions_.erase("tokenizer_config.json");  // the model has its own EOS token
  open(file, file);
}

Tokenizer::Tokenizer(std::string model, const std::string& name) : model_(std::move(model)) {
  open("", name);
}

Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

void Tokenizer::open(const std::string& path, const std::string& name) {
  if (is_json(model_)) {
    auto bpe = std::make_unique<const BpeTokenizer>(model_, name);
    eos_id_ = eos_token_id(*bpe, companions_, path);
    backend_ = std::move(bpe);
  } else {
    backend_ = std::make_unique<const SentencePieceTokenizer>(model_, name);
    eos_id_ = backend_->eos_id();
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  Cache cache;
  encode(text, ids, cache);
  return ids;
}

void Tokenizer::encode(std::string_view text, std::vector<int32_t>& ids, Cache& cache) const {
  backend_->encode(text, ids, cache);
}

std::vector<int32_t> Tokenizer::encode_conversation(std::string_view text) const {
  std::vector<int32_t> ids;
  Cache cache;
  backend_->encode_conversation(text, ids, cache);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  for (const int32_t id : ids) check_id(id);
  return backend_->decode(ids);
}

int64_t Tokenizer::vocab_size() const { return backend_->vocab_size(); }

std::string Tokenizer::piece(int32_t id) const {
  check_id(id);
  return backend_->piece(id);
}

std::string Tokenizer::bytes(int32_t id) const {
  check_id(id);
  return backend_->bytes(id);
}

int32_t Tokenizer::bos_id() const { return backend_->bos_id(); }

bool Tokenizer::lossless() const { return backend_->lossless(); }

void Tokenizer::check_id(int32_t id) const {
  if (id >= 0 && id < vocab_size()) return;
  throw UserError("token id " + std::to_string(id) +
                  " is outside the tokenizer's vocabulary, expected 0 to " +
                  std::to_string(vocab_size() - 1));
}

std::string Tokenizer::hash() const { return sha256(model_); }

const char* Tokenizer::file_name(std::string_view model) {
  return is_json(model) ? kJsonName.data() : "tokenizer.model";
}

bool Tokenizer::in_folder(const std::string& path) { return !find_tokenizer_file(path).empty(); }

std::string tokenizer_path(const std::string& out, const Tokenizer& tokenizer) {
  return out + (tokenizer.file_name() == kJsonName ? ".tokenizer.json" : ".model");
}

std::string write_tokenizer(const std::string& out, const Tokenizer& tokenizer) {
  for (const char* const name : kCompanions) {
    const std::string path = out + "." + name;
    const auto companion = tokenizer.companions().find(name);
    if (companion != tokenizer.companions().end()) {
      write_file(path, companion->second);
    } else {
      fs::remove(path);  // of a previous tokenizer
    }
  }
  const std::string path = tokenizer_path(out, tokenizer);
  write_file(path, tokenizer.model());
  return path;
}

}  // namespace hero
