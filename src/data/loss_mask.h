// Loss masks: PREFIX-mask.bin and .idx next to the token files PREFIX.bin and .idx, an indexed dataset of u8
// with the same documents. An element is 1 if the token is trained on where it is a target, else 0.
// `python -m hero_moe.data tokenize` writes them for conversations.
#pragma once
#include <memory>
#include <string>

#include "data/indexed_dataset.h"

namespace hero {

/// The mask's prefix, given that of the token files.
std::string loss_mask_prefix(const std::string& prefix);

/// Opens the mask of a dataset. UserError if there is none, if it has another type, or if its documents have
/// other lengths.
std::shared_ptr<const IndexedDataset> open_loss_mask(const IndexedDataset& tokens);

/// Removes the mask of token files that are replaced.
void remove_loss_mask(const std::string& prefix);

}  // namespace hero
