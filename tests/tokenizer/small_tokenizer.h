// A small tokenizer.json: GPT-2's alphabet in byte order, a few merges, an EOS token.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tokenizer/byte_level.h"

namespace hero {

inline nlohmann::json added_token(int id, const std::string& content, bool special = false) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

/// Piece 256 + i is the i-th merge; <|endoftext|> is the last piece.
inline nlohmann::json small_tokenizer_json(const std::vector<std::pair<std::string, std::string>>& merges = {
                                               {"a", "b"}, {"ab", "c"}, {"\u0120", "a"}}) {
  nlohmann::json vocab, pairs = nlohmann::json::array();
  for (int byte = 0; byte < 256; ++byte) vocab[bytes_to_unicode()[byte]] = byte;
  for (const auto& [left, right] : merges) {
    vocab[left + right] = vocab.size();
    pairs.push_back(left + " " + right);
  }
  const auto end = static_cast<int>(vocab.size());
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", nlohmann::json::array({added_token(end, "<|endoftext|>", true)})},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"unk_token", nullptr}, {"vocab", vocab}, {"merges", pairs}}}};
}

}  // namespace hero
