#include "analysis/benchmark_rows.h"

#include <nlohmann/json.hpp>

#include "io/error.h"
#include "io/json.h"
#include "io/line_reader.h"

namespace hero {
namespace {

using nlohmann::json;

const std::string& string_field(const json& row, const char* name, const std::string& where) {
  const auto field = row.find(name);
  if (field == row.end()) throw UserError(where + ": found no field \"" + name + "\", expected a string");
  if (!field->is_string())
    throw UserError(where + ": " + name + ": found " + format_value(*field) + ", expected a string");
  return field->get_ref<const std::string&>();
}

const std::string& correct_choice(const json& row, const std::string& where) {
  const auto& choices = row.at("choices");
  if (!choices.is_array() || choices.empty())
    throw UserError(where + ": choices: found " + format_value(choices) + ", expected a list of strings");
  const auto gold = row.find("gold");
  const auto last = static_cast<int64_t>(choices.size()) - 1;
  if (gold == row.end() || !gold->is_number_integer() || gold->get<int64_t>() < 0 ||
      gold->get<int64_t>() > last) {
    throw UserError(where + ": gold: found " + (gold == row.end() ? "nothing" : format_value(*gold)) +
                    ", expected the index of the correct choice, 0 to " + std::to_string(last));
  }
  const auto& choice = choices[gold->get<size_t>()];
  if (!choice.is_string())
    throw UserError(where + ": choices: found " + format_value(choice) + ", expected strings");
  return choice.get_ref<const std::string&>();
}

}  // namespace

std::string row_text(const json& row, const std::string& where) {
  if (!row.is_object()) throw UserError(where + ": found " + format_value(row) + ", expected a JSON object");
  if (row.contains("text")) return string_field(row, "text", where);
  if (row.contains("prompt"))
    return string_field(row, "prompt", where) + string_field(row, "canonical_solution", where);
  if (!row.contains("query")) {
    throw UserError(where + ": found none of the fields \"text\", \"query\" and \"prompt\", expected one");
  }
  const std::string query = string_field(row, "query", where);
  if (row.contains("choices")) return query + " " + correct_choice(row, where);
  if (row.contains("solution")) return query + "\n" + string_field(row, "solution", where);
  if (row.contains("answer")) return query + "\n" + string_field(row, "answer", where);
  throw UserError(where + ": found \"query\" alone, expected \"choices\" and \"gold\", or \"answer\"");
}

void for_each_row_text(const std::string& path, const std::function<void(const std::string& text)>& on_text) {
  LineReader lines(path);
  for (std::string line; lines.next(line);) {
    const std::string where = path + ":" + std::to_string(lines.line());
    if (lines.too_long()) throw UserError(where + ": " + LineReader::too_long_message());
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    on_text(row_text(parse_json(line, {where}), where));
  }
}

}  // namespace hero
