#pragma once
#include <string_view>

namespace hero {

/// Checks a precompiled_charsmap of a SentencePiece model: the size of a double-array trie in bytes, the
/// trie, and the replacements, each ended by NUL, that its values point to. SentencePiece 0.1.97 follows
/// offsets and values without a check. Returns what is wrong, or nullptr.
const char* find_character_map_defect(std::string_view bytes);

}  // namespace hero
