#pragma once
// A model of random weights in fp64 and a tokenizer of bytes for it.
#include <memory>

#include "model/transformer.h"
#include "oracle/small_models.h"
#include "tokenizer/small_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace served {

inline const hero::Tokenizer& tokenizer() {
  static const hero::Tokenizer one(hero::small_tokenizer_json().dump(), "tokenizer.json");
  return one;
}

/// Its end token is never the likeliest by itself; 70 positions.
inline const hero::Transformer& model() {
  static const auto one = [] {
    auto config = small::qwen();
    config.model.vocab_size = 300;  // more than the tokenizer's 260
    config.model.max_position_embeddings = 70;
    auto made = std::make_unique<hero::Transformer>(config);
    small::perturb(*made, 0.1, 9);
    return made;
  }();
  return *one;
}

inline std::vector<int64_t> ids(const std::string& text) {
  const auto found = tokenizer().encode(text);
  return {found.begin(), found.end()};
}

}  // namespace served
