#pragma once
// Rows of benchmark files as running text: the question with its right answer.
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace hero {

/// The text of a row. By the fields that it has: `text`; `prompt` with `canonical_solution` behind it
/// (HumanEval); `query`, then a space and the entry `gold` of `choices`; `query`, then a new line and
/// `solution`, or `answer` where there is no solution. UserError beginning with `where` for anything else.
std::string row_text(const nlohmann::json& row, const std::string& where);

/// Calls `see` with the text of every row of a JSON Lines file (.jsonl, also compressed as .gz or .zst);
/// empty lines are passed over. UserError naming file and line.
void for_each_row_text(const std::string& path, const std::function<void(const std::string& text)>& see);

}  // namespace hero
