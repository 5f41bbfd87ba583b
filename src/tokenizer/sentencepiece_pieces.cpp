#include "tokenizer/sentencepiece_pieces.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_map>

#include "io/error.h"
#include "io/json.h"
#include "io/utf8.h"

namespace hero {

namespace {

using Model = SentencePieceModel;
using Type = Model::Type;

constexpr std::size_t kMostPieces = 1 << 24;
constexpr std::size_t kLongestPiece = 4096;  // bytes; the library recurses over the bytes of a piece
constexpr std::size_t kMostNested = 64;      // the library's array for the user-defined pieces at one place

[[noreturn]] void reject(const std::string& name, std::size_t id, const std::string& found,
                         const std::string& expected) {
  throw UserError(name + ": piece " + std::to_string(id) + ": found " + found + ", expected " + expected);
}

// Whether the library puts the piece into a trie, whose builder takes NUL for the end.
bool in_trie(const Model& model, Type type) {
  return type == Type::user_defined ||
         (model.kind == Model::Kind::unigram && (type == Type::normal || type == Type::unused));
}

void check_piece(const Model& model, std::size_t id, const std::string& name) {
  const auto& piece = model.pieces[id];
  if (piece.text.empty()) reject(name, id, "an empty piece", "text");
  if (piece.text.size() > kLongestPiece) {
    reject(name, id, std::to_string(piece.text.size()) + " bytes",
           "at most " + std::to_string(kLongestPiece));
  }
  if (find_invalid_utf8(piece.text) != std::string::npos)
    reject(name, id, "invalid UTF-8 " + format_value(piece.text), "UTF-8 text");
  if (in_trie(model, piece.type) && piece.text.find('\0') != std::string::npos)
    reject(name, id, "a NUL byte in " + format_value(piece.text), "text without it");
  if (!std::isfinite(piece.score)) reject(name, id, "score " + std::to_string(piece.score), "a finite score");
}

// At most kMostNested user-defined pieces may be prefixes of one another.
void check_nesting(const Model& model, const std::string& name) {
  std::vector<std::pair<std::string_view, std::size_t>> sorted;
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    if (model.pieces[id].type == Type::user_defined) sorted.emplace_back(model.pieces[id].text, id);
  }
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::string_view> prefixes;
  for (const auto& [text, id] : sorted) {
    while (!prefixes.empty() && !text.starts_with(prefixes.back())) prefixes.pop_back();
    prefixes.push_back(text);
    if (prefixes.size() > kMostNested) {
      reject(name, id, std::to_string(kMostNested) + " other user-defined pieces at its start",
             "at most " + std::to_string(kMostNested - 1));
    }
  }
}

}  // namespace

void check_pieces(const Model& model, const std::string& name) {
  if (model.pieces.size() > kMostPieces) {
    throw UserError(name + ": found " + std::to_string(model.pieces.size()) + " pieces, expected at most " +
                    std::to_string(kMostPieces));
  }
  std::unordered_map<std::string_view, std::size_t> ids;
  std::size_t unknown = model.pieces.size();
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    check_piece(model, id, name);
    const auto& piece = model.pieces[id];
    if (const auto [first, added] = ids.emplace(piece.text, id); !added) {
      reject(name, id, format_value(piece.text) + " as for piece " + std::to_string(first->second),
             "unique pieces");
    }
    if (piece.type != Type::unknown) continue;
    if (unknown < id) reject(name, id, "a second piece of type unknown", "one");
    unknown = id;
  }
  if (unknown == model.pieces.size())
    throw UserError(name + ": found no piece of type unknown, expected one");
  check_nesting(model, name);
}

}  // namespace hero
