#include "data/loss_mask.h"

#include <filesystem>

#include "io/error.h"

namespace hero {

std::string loss_mask_prefix(const std::string& prefix) { return prefix + "-mask"; }

std::shared_ptr<const IndexedDataset> open_loss_mask(const IndexedDataset& tokens) {
  const std::string prefix = loss_mask_prefix(tokens.prefix()), index = prefix + ".idx";
  if (!std::filesystem::exists(index)) {
    throw UserError(
        index + ": not found, expected the loss mask for train.loss_mask = true; " +
        "python -m hero_moe.data tokenize writes one with --messages, or --prompt and --response");
  }
  auto mask = std::make_shared<const IndexedDataset>(prefix);
  if (mask->type() != TokenType::u8) {
    throw UserError(index + ": found elements of type " + token_type_name(mask->type()) + ", expected " +
                    token_type_name(TokenType::u8));
  }
  const auto reject = [&](const std::string& found, const std::string& expected) {
    throw UserError(index + ": found " + found + ", expected " + expected + " as in " + tokens.prefix() +
                    ".idx; tokenize again");
  };
  if (mask->documents() != tokens.documents()) {
    reject(std::to_string(mask->documents()) + " documents", std::to_string(tokens.documents()));
  }
  for (int64_t d = 0; d < tokens.documents(); ++d) {
    if (mask->document_tokens(d) == tokens.document_tokens(d)) continue;
    reject("document " + std::to_string(d) + " of " + std::to_string(mask->document_tokens(d)) + " tokens",
           std::to_string(tokens.document_tokens(d)));
  }
  return mask;
}

void remove_loss_mask(const std::string& prefix) {
  for (const char* const extension : {".idx", ".bin"})
    std::filesystem::remove(loss_mask_prefix(prefix) + extension);
}

}  // namespace hero
