#pragma once
#include <string>

#include "tokenizer/sentencepiece_model.h"

namespace hero {

/// UserError with the id of a piece that SentencePiece 0.1.97 cannot handle.
void check_pieces(const SentencePieceModel& model, const std::string& name);

}  // namespace hero
