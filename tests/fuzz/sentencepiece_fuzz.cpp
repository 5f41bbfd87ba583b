// SentencePiece models, and text through them.
#include "fuzz/checks.h"
#include "fuzz/targets.h"

namespace hero::fuzz {

bool read_sentencepiece(std::string_view bytes) {
  return accepted(bytes, [](std::string_view file) {
    const std::string model(file);
    if (Tokenizer::file_name(model) != std::string("tokenizer.model")) return;  // the target tokenizer_json
    const Tokenizer tokenizer(model, kFile);
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) tokenizer.piece(id);
    check_tokenizer(tokenizer, "");
    check_tokenizer(tokenizer, " a  text </s> \xE2\x96\x81 with\t\xC3\xA9 <unk> \xEF\xAC\x81 12\n");
  });
}

}  // namespace hero::fuzz
