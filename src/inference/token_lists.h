#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"

namespace hero {

/// Reads a JSON list of lists of token ids. UserError naming the file and the list for other content, an id
/// outside the vocabulary, an empty list, or a list longer than model.max_position_embeddings.
std::vector<std::vector<int64_t>> read_token_lists(const std::string& path, const ModelConfig& model);

}  // namespace hero
