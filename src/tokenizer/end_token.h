#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "tokenizer/bpe_tokenizer.h"

namespace hero {

/// The id that ends a document, for a tokenizer.json at `path` (empty: from memory): eos_token of
/// tokenizer_config.json, which `companions` holds where it is there; else eos_token_id of
/// generation_config.json or config.json beside a file of that very name (of a list the first); else
/// BpeTokenizer::eos_id. UserError when these name no token of the vocabulary.
int32_t end_token(const BpeTokenizer& tokenizer, const std::map<std::string, std::string>& companions,
                  const std::filesystem::path& path);

}  // namespace hero
