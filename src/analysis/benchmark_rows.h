#pragma once
// Benchmark rows as text: the question with its correct answer.
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace hero {

/// The text of a row, by its fields: `text`; `prompt` followed by `canonical_solution` (HumanEval); `query`,
/// a space and choice `gold` of `choices`; `query`, a newline and `solution`, else `answer`. UserError
/// starting with `where` for anything else.
std::string row_text(const nlohmann::json& row, const std::string& where);

/// Calls `on_text` with the text of every row of a JSON Lines file (.jsonl, also compressed as .gz or .zst);
/// skips empty lines. UserError naming file and line.
void for_each_row_text(const std::string& path, const std::function<void(const std::string& text)>& on_text);

}  // namespace hero
