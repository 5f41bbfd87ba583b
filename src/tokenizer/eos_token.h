#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "tokenizer/bpe_tokenizer.h"

namespace hero {

/// EOS id for a tokenizer.json at `path` (empty: in memory): eos_token of tokenizer_config.json, if it is in
/// `companions`; else eos_token_id (the first of a list) of generation_config.json or config.json in the same
/// folder, for files named tokenizer.json; else BpeTokenizer::eos_id. UserError for a token that is not in
/// the vocabulary.
int32_t eos_token_id(const BpeTokenizer& tokenizer, const std::map<std::string, std::string>& companions,
                     const std::filesystem::path& path);

}  // namespace hero
