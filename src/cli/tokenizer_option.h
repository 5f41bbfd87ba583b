#pragma once
#include <filesystem>
#include <string>

#include "cli/command.h"
#include "config/config.h"
#include "config/warnings.h"
#include "io/error.h"
#include "tokenizer/companions.h"
#include "tokenizer/tokenizer.h"

namespace hero {

/// Adds --tokenizer, with a value for open_tokenizer.
inline void add_tokenizer_option(Command& command, std::string& tokenizer) {
  command.add_option("--tokenizer", tokenizer, "tokenizer file or folder; default: the model folder");
}

/// Reads the value of --tokenizer, or the tokenizer of the model in `folder` if it is empty. UserError if the
/// model's vocabulary has fewer ids. Warns about added tokens of a folder that a SentencePiece model does not
/// have.
inline Tokenizer open_tokenizer(const std::string& option, const std::filesystem::path& folder,
                                const ModelConfig& model) {
  const std::string path = option.empty() ? folder.string() : option;
  Tokenizer tokenizer(path);
  if (tokenizer.vocab_size() > model.vocab_size) {
    throw UserError(path + ": " + std::to_string(tokenizer.vocab_size()) +
                    " tokens, expected at most the model's " + std::to_string(model.vocab_size));
  }
  if (std::filesystem::is_directory(path)) {
    if (const auto missing = added_tokens_beyond(path, tokenizer.vocab_size()); !missing.empty())
      warn(
          {path + ": " + tokenizer.file_name() + " has no " + missing.front() +
           (missing.size() == 1 ? "" : " and " + std::to_string(missing.size() - 1) + " other added tokens") +
           " of the folder: such text is encoded as other tokens"});
  }
  return tokenizer;
}

}  // namespace hero
