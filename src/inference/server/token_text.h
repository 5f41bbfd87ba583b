#pragma once
// Text of token ids, which may be outside the tokenizer's vocabulary: a model's vocabulary may be larger.
#include <cstdint>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace hero {

/// The bytes that a token adds to a text; none for special tokens and for ids without text.
std::string token_bytes(const Tokenizer& tokenizer, int64_t id);

/// The string of a single token: its text, "bytes:\xe4\xb8" for incomplete UTF-8, "token_id:7" for an id
/// without text.
std::string token_string(const Tokenizer& tokenizer, int64_t id);

/// Decodes ids; skips special tokens.
std::string decode_text(const Tokenizer& tokenizer, const std::vector<int64_t>& ids);

}  // namespace hero
