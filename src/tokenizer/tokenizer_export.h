#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "tokenizer/tokenizer.h"

namespace hero {

/// Files of a model folder (name -> contents) from which transformers.AutoTokenizer loads this tokenizer.
///
/// A tokenizer.json is copied unchanged, with its companions or a new tokenizer_config.json that sets the EOS
/// token. A SentencePiece model is copied as tokenizer.model and, if it is a BPE model with byte fallback
/// whose text is kept or only gets a space first (Llama 2's), also converted to a tokenizer.json: it adds no
/// special tokens and, like hero, does not parse "</s>" in a text (split_special_tokens). Its ids equal
/// hero's, with two exceptions. hero splits words of more than 65,536 bytes if text is kept. And if a piece
/// has several merges, SentencePiece applies the leftmost pair in the text; a ranked list of merges
/// reproduces this unless such pairs overlap and the piece repeats a shorter one. No text is known for which
/// this matters. transformers reads all other models with the sentencepiece library; where hero keeps text,
/// U+2581 is a space there.
///
/// `model_max_length`: in tokens; 0: not written.
std::map<std::string, std::string> tokenizer_files(const Tokenizer& tokenizer, int64_t model_max_length = 0);

}  // namespace hero
