#pragma once
// Which tokenizer a model or a data set belongs to.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace hero {

/// The tokenizer that produced token ids.
struct TokenizerIdentity {
  std::string where;   ///< file or folder that names it
  std::string sha256;  ///< of the tokenizer file
};

/// The tokenizer of a model folder; nullopt if there is none.
std::optional<TokenizerIdentity> tokenizer_identity(const std::filesystem::path& folder);

/// UserError naming the first two that differ.
void check_same_tokenizer(const std::vector<TokenizerIdentity>& tokenizers);

}  // namespace hero
