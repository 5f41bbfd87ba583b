#pragma once
// Pieces of parameters, which no layout but one's own knows, as tensors of a checkpoint, which every layout
// reads.
#include <filesystem>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/parameters.h"
#include "optim/piece.h"

namespace hero {

/// Adds the pieces' values and moments to what a checkpoint holds: parts of parameters under their names on
/// disk, moments as exp_avg.NAME and exp_avg_sq.NAME. Of a part that a piece does not hold whole, the values
/// are a slice, and each moment is a tensor exp_avg.NAME[begin,end).
void add_pieces(const Parameters& parameters, const std::vector<Piece>& pieces, CheckpointContents& contents);

/// Fills moments, and values that are not the parameters' own memory, from a checkpoint of any layout.
/// UserError as RangeReader.
void read_pieces(const std::filesystem::path& checkpoint, const Parameters& parameters,
                 const std::vector<Piece>& pieces);

}  // namespace hero
