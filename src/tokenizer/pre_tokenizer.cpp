#include "tokenizer/pre_tokenizer.h"

#include <algorithm>

namespace hero {

namespace {

struct Piece {
  std::size_t begin, end;
  bool match;
};

using Behavior = PreTokenizer::Behavior;

// Merges each match into the preceding piece, unless that is also a match.
std::vector<Piece> merge_into_previous(const std::vector<Piece>& pieces) {
  std::vector<Piece> merged;
  bool after_match = false;
  for (const auto& piece : pieces) {
    if (piece.match && !after_match && !merged.empty()) {
      merged.back().begin = std::min(merged.back().begin, piece.begin);
      merged.back().end = std::max(merged.back().end, piece.end);
    } else {
      merged.push_back(piece);
    }
    after_match = piece.match;
  }
  return merged;
}

std::vector<Piece> merge_runs(const std::vector<Piece>& pieces) {
  std::vector<Piece> merged;
  for (const auto& piece : pieces) {
    if (!merged.empty() && merged.back().match == piece.match) {
      merged.back().end = piece.end;
    } else {
      merged.push_back(piece);
    }
  }
  return merged;
}

std::vector<Piece> apply_behavior(std::vector<Piece> pieces, Behavior behavior) {
  switch (behavior) {
    case Behavior::isolated:
      break;
    case Behavior::removed:
      std::erase_if(pieces, [](const Piece& piece) { return piece.match; });
      break;
    case Behavior::contiguous:
      return merge_runs(pieces);
    case Behavior::merged_with_previous:
      return merge_into_previous(pieces);
    case Behavior::merged_with_next:
      std::reverse(pieces.begin(), pieces.end());
      pieces = merge_into_previous(pieces);
      std::reverse(pieces.begin(), pieces.end());
      break;
  }
  return pieces;
}

}  // namespace

void PreTokenizer::add_split(Pattern pattern, Behavior behavior, bool invert) {
  steps_.emplace_back(Split{std::move(pattern), behavior, invert});
  keeps_text_ = keeps_text_ && behavior != Behavior::removed;
}

void PreTokenizer::add_prefix_space() {
  steps_.emplace_back(PrefixSpace{});
  keeps_text_ = false;
}

void PreTokenizer::split(std::string_view text, Scratch& scratch) const {
  auto &words = scratch.words, &pieces = scratch.pieces;
  auto& matches = scratch.matches;
  auto& prefixed = scratch.prefixed;
  prefixed.clear();
  words.clear();
  if (!text.empty()) words.push_back(text);
  const auto keep = [&words](std::string_view word) {
    if (!word.empty()) words.push_back(word);
  };
  for (const auto& step : steps_) {
    std::swap(words, pieces);
    words.clear();
    for (const std::string_view piece : pieces) {
      const auto* const split = std::get_if<Split>(&step);
      if (!split) {
        words.push_back(piece.front() == ' ' ? piece : prefixed.emplace_back(" " + std::string(piece)));
        continue;
      }
      matches.clear();
      std::visit([&](const auto& pattern) { pattern.find(piece, matches); }, split->pattern);
      std::size_t last_end = 0;
      if (split->behavior == Behavior::isolated) {  // common case; same result for matches and gaps
        for (const auto& [begin, end] : matches) {
          keep(piece.substr(last_end, begin - last_end));
          keep(piece.substr(begin, end - begin));
          last_end = end;
        }
        keep(piece.substr(last_end));
        continue;
      }
      std::vector<Piece> cut;
      for (const auto& [begin, end] : matches) {
        if (last_end != begin) cut.push_back({last_end, begin, split->invert});
        cut.push_back({begin, end, !split->invert});
        last_end = end;
      }
      if (last_end != piece.size()) cut.push_back({last_end, piece.size(), split->invert});
      for (const auto& part : apply_behavior(std::move(cut), split->behavior))
        keep(piece.substr(part.begin, part.end - part.begin));
    }
  }
}

}  // namespace hero
