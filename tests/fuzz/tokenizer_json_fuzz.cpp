// tokenizer.json, and text through the tokenizer that it describes.
#include "fuzz/checks.h"
#include "fuzz/targets.h"

namespace hero::fuzz {

bool read_tokenizer_json(std::string_view bytes) {
  return accepted(bytes, [](std::string_view file) {
    // Anything that does not begin with "{" would be read as a SentencePiece model.
    const Tokenizer tokenizer("{" + std::string(file.substr(std::min<size_t>(1, file.size()))), kFile);
    for (int32_t id = 0; id < std::min<int64_t>(tokenizer.vocab_size(), 1000); ++id) tokenizer.piece(id);
    check_tokenizer(tokenizer, "");
    check_tokenizer(tokenizer,
                    " Hello, WORLD!  it's 12345\n\n\tab\xC3\xA9 <|endoftext|> \xE4\xB8\xAD\xF0\x9F\x98\x80 ");
  });
}

}  // namespace hero::fuzz
