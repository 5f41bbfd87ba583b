#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "tokenizer/tokenizer.h"

namespace hero {

/// The files of a model folder (name -> content) from which transformers.AutoTokenizer makes this tokenizer.
///
/// A tokenizer.json stays as it is; beside it stand its companions, or a new tokenizer_config.json that names
/// the end token. A SentencePiece BPE model with `lossless` text stays as tokenizer.model and is written out
/// as a tokenizer.json too: it adds no special tokens and, as hero, leaves "</s>" in a text text
/// (split_special_tokens). Its ids are hero's, with two exceptions. hero cuts words of more than 65,536 bytes
/// (text without a single pair of bytes that no piece holds). And where one piece can be joined from
/// different pairs of pieces SentencePiece takes the leftmost pair of the text, which a list of ranked merges
/// can only follow while such pairs do not overlap, or the piece is no repetition of a shorter one: no text
/// is known that comes to it. Any other SentencePiece model is left to transformers' own conversion of
/// tokenizer.model.
///
/// `model_max_length` in tokens; 0 says nothing about it.
std::map<std::string, std::string> tokenizer_files(const Tokenizer& tokenizer, int64_t model_max_length = 0);

}  // namespace hero
