#include "tokenizer/bpe_tokenizer.h"

#include <algorithm>

#include "io/error.h"
#include "io/one_line.h"
#include "io/utf8.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/tokenizer_json.h"

namespace hero {

BpeTokenizer::BpeTokenizer(const std::string& json, const std::string& name)
    : BpeTokenizer(read_tokenizer_json(json, name), name) {}

BpeTokenizer::BpeTokenizer(TokenizerJson json, const std::string& name)
    : ids_(json.vocab), normalizer_(json.normalizer), pre_tokenizer_(std::move(json.pre_tokenizer)) {
  const auto bytes_of = [](const std::string& piece) { return unicode_to_bytes(piece).value_or(piece); };
  const auto place = [&](const std::string& piece, int32_t id, const std::string& text) {
    const std::size_t size = std::max(pieces_.size(), static_cast<std::size_t>(id) + 1);
    pieces_.resize(size);
    texts_.resize(size);
    pieces_[id] = piece;
    texts_[id] = text;
  };
  for (const auto& [piece, id] : json.vocab) {
    place(piece, id, bytes_of(piece));
    if (!json.ignore_merges) continue;
    if (const auto word = unicode_to_bytes(piece)) words_.emplace(*word, id);
  }

  std::array<int32_t, 256> bytes;
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = json.vocab.find(bytes_to_unicode()[byte]);
    bytes[byte] = found == json.vocab.end() ? -1 : found->second;
  }
  const bool every_byte = std::find(bytes.begin(), bytes.end(), -1) == bytes.end();
  const auto unknown = json.vocab.find(json.unknown);
  if (!every_byte && !json.unknown.empty() && unknown == json.vocab.end()) {
    throw UserError(name + ": model.unk_token: found \"" + one_line(json.unknown) +
                    "\", expected a piece of model.vocab, which does not cover all bytes");
  }
  merges_ = std::make_unique<BpeMerges>(
      bytes, json.merges, unknown == json.vocab.end() ? -1 : unknown->second, json.fuse_unknown);

  lossless_ = every_byte && !normalizer_.changes_text() && pre_tokenizer_.keeps_text();
  std::vector<AddedToken> before, after;
  for (auto& token : json.added) {
    ids_.emplace(token.content, token.id);
    std::string buffer;
    const std::string content = token.content;
    if (token.normalized) token.content = std::string(normalizer_.apply(content, buffer));
    place(content, token.id, token.special ? "" : bytes_of(token.content));
    added_contents_.push_back(content);
    if (!token.special)
      lossless_ = lossless_ && !token.lstrip && !token.rstrip && texts_[token.id] == content;
    if (!token.content.empty()) (token.normalized ? after : before).push_back(std::move(token));
  }
  added_ = std::make_unique<AddedTokens>(std::move(before));
  added_normalized_ = std::make_unique<AddedTokens>(std::move(after));
}

void BpeTokenizer::encode(std::string_view text, std::vector<int32_t>& ids, WordCache& cache) const {
  PreTokenizer::Scratch scratch;
  std::string buffer;
  for (const auto& section : added_->split(text)) {
    if (section.id >= 0) {
      ids.push_back(section.id);
      continue;
    }
    for (const auto& inner : added_normalized_->split(normalizer_.apply(section.text, buffer))) {
      if (inner.id >= 0) {
        ids.push_back(inner.id);
      } else {
        encode_section(inner.text, ids, cache, scratch);
      }
    }
  }
}

void BpeTokenizer::encode_section(std::string_view text, std::vector<int32_t>& ids, WordCache& cache,
                                  PreTokenizer::Scratch& scratch) const {
  pre_tokenizer_.split(text, scratch);
  for (const std::string_view word : scratch.words) {
    cache.append(word, ids, [this](std::string_view w, std::vector<int32_t>& to) {
      if (!words_.empty()) {
        if (const auto whole = words_.find(std::string(w)); whole != words_.end()) {
          to.push_back(whole->second);
          return;
        }
      }
      merges_->encode(w, to);
    });
  }
}

std::string BpeTokenizer::decode(std::span<const int32_t> ids) const {
  std::string bytes;
  for (const int32_t id : ids) bytes += texts_[id];
  return to_valid_utf8(std::move(bytes));
}

int32_t BpeTokenizer::eos_id() const {
  for (const char* const common : {"<|endoftext|>", "<|end_of_text|>",
                                   "<\xEF\xBD\x9C"
                                   "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
                                   "</s>", "<|im_end|>"}) {
    if (std::find(added_contents_.begin(), added_contents_.end(), common) != added_contents_.end())
      return ids_.at(common);
  }
  return -1;
}

std::optional<int32_t> BpeTokenizer::id_of(const std::string& piece) const {
  const auto found = ids_.find(piece);
  return found == ids_.end() ? std::nullopt : std::optional<int32_t>(found->second);
}

}  // namespace hero
