#pragma once
// Files beside a tokenizer that describe it.
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace hero {

inline constexpr const char* kCompanions[] = {"tokenizer_config.json", "chat_template.jinja"};

/// The companions of a tokenizer file or of a folder, by name: those of OUT.tokenizer.json and OUT.model are
/// OUT.tokenizer_config.json and so on; those of tokenizer.json and tokenizer.model have no prefix.
std::map<std::string, std::string> read_companions(const std::filesystem::path& path);

/// Added tokens of a model folder (added_tokens.json, or added_tokens_decoder in tokenizer_config.json) with
/// ids from `vocab_size`, which the tokenizer of that size does not have.
std::vector<std::string> added_tokens_beyond(const std::filesystem::path& folder, int64_t vocab_size);

}  // namespace hero
