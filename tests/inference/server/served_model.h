#pragma once
// A random fp64 model and a byte-level tokenizer.
#include <memory>

#include "model/transformer.h"
#include "oracle/small_models.h"
#include "tokenizer/small_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace served {

inline const hero::Tokenizer& tokenizer() {
  static const hero::Tokenizer instance(hero::small_tokenizer_json().dump(), "tokenizer.json");
  return instance;
}

/// 70 positions. Greedy decoding never chooses its end token.
inline const hero::Transformer& model() {
  static const auto instance = [] {
    auto config = small::qwen();
    config.model.vocab_size = 300;  // more than the tokenizer's 260
    config.model.max_position_embeddings = 70;
    auto model = std::make_unique<hero::Transformer>(config);
    small::perturb(*model, 0.1, 9);
    return model;
  }();
  return *instance;
}

inline std::vector<int64_t> ids(const std::string& text) {
  const auto encoded = tokenizer().encode(text);
  return {encoded.begin(), encoded.end()};
}

}  // namespace served
