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

/// The end of an answer: the EOS token, those of generation_config.json or config.json in `folder` (a list of
/// ids), and what the template writes after an assistant's message, up to the end of the line and without
/// white space around it; if it writes nothing, what it writes before the next message of the user. Its
/// token, if it begins with a special token or is a single one.
EndOfTurn find_end_of_turn(ChatTemplate& chat, const Tokenizer& tokenizer,
                           const std::filesystem::path& folder);

}  // namespace hero
