#include "tokenizer/tokenizer_identity.h"

#include "io/error.h"
#include "tokenizer/tokenizer.h"

namespace hero {

std::optional<TokenizerIdentity> tokenizer_identity(const std::filesystem::path& folder) {
  if (!Tokenizer::in_folder(folder.string())) return std::nullopt;
  const Tokenizer tokenizer(folder.string());
  return TokenizerIdentity{(folder / tokenizer.file_name()).string(), tokenizer.hash()};
}

void check_same_tokenizer(const std::vector<TokenizerIdentity>& tokenizers) {
  for (const auto& other : tokenizers) {
    if (other.sha256 != tokenizers[0].sha256) {
      throw UserError(other.where + ": different tokenizer than " + tokenizers[0].where +
                      ", expected the same vocabulary");
    }
  }
}

}  // namespace hero
