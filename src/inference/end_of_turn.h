#pragma once
// Where an assistant's answer ends.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "inference/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace hero {

struct EndOfTurn {
  std::vector<int64_t> ids;          ///< of tokens that end an answer
  std::vector<std::string> strings;  ///< texts that end an answer and are not part of it
};

/// The ids that end a text: the EOS token, and eos_token_id of generation_config.json or else config.json in
/// `folder`, an id or a list. Ascending.
std::vector<int64_t> end_tokens(const Tokenizer& tokenizer, const std::filesystem::path& folder);

/// The end of an answer: end_tokens, and what the template writes after an assistant's message, up to the end
/// of the line and without white space around it; if it writes nothing, what it writes before the next
/// message of the user. Its token, if it begins with a special token or is a single one.
EndOfTurn find_end_of_turn(ChatTemplate& chat, const Tokenizer& tokenizer,
                           const std::filesystem::path& folder);

}  // namespace hero
