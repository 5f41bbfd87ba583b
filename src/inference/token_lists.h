#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"

namespace hero {

/// The token ids in a JSON file: a list of lists. UserError naming the file and the list for anything else,
/// for an id outside the vocabulary, for an empty list and for one longer than model.max_position_embeddings.
std::vector<std::vector<int64_t>> read_token_lists(const std::string& path, const ModelConfig& model);

}  // namespace hero
