#pragma once
// Files beside a tokenizer that describe it.
#include <filesystem>
#include <map>
#include <string>

namespace hero {

inline constexpr const char* kCompanions[] = {"tokenizer_config.json", "chat_template.jinja"};

/// The companions of a tokenizer file or of a folder, by name: those of OUT.tokenizer.json and OUT.model are
/// OUT.tokenizer_config.json and so on; those of tokenizer.json and tokenizer.model have no prefix.
std::map<std::string, std::string> read_companions(const std::filesystem::path& path);

}  // namespace hero
