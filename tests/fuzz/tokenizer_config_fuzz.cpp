// tokenizer_config.json beside a tokenizer.json.
#include "fuzz/checks.h"
#include "fuzz/targets.h"
#include "tokenizer/eos_token.h"
#include "tokenizer/small_tokenizer.h"

namespace hero::fuzz {

bool read_tokenizer_config(std::string_view bytes) {
  static const BpeTokenizer tokenizer(small_tokenizer_json().dump(), "small");
  return accepted(bytes, [](std::string_view file) {
    const int32_t id = eos_token_id(tokenizer, {{"tokenizer_config.json", std::string(file)}}, kFile);
    require(id >= -1 && id < tokenizer.vocab_size(), "an EOS token outside the vocabulary");
  });
}

}  // namespace hero::fuzz
