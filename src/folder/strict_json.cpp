#include "folder/strict_json.h"

#include <set>
#include <vector>

#include "config/error.h"

namespace hero {
namespace {

constexpr int kDeepest = 100;

std::string abridged(const std::string& text) {
  return text.size() <= 80 ? text : text.substr(0, 77) + "...";
}

}  // namespace

nlohmann::json parse_strict(std::string_view text, const std::string& file, size_t offset) {
  std::vector<std::set<std::string>> keys;  // of the open objects, by depth
  const auto see = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    const auto level = static_cast<size_t>(depth);
    if ((event == Event::object_start || event == Event::array_start) && depth >= kDeepest) {
      throw UserError(file + ": found values nested more than " + std::to_string(kDeepest) +
                      " deep, expected a JSON object of few levels");
    }
    if (event == Event::object_start) {
      keys.resize(std::max(keys.size(), level + 2));
      keys[level + 1].clear();
    } else if (event == Event::key && !keys[level].insert(parsed.get<std::string>()).second) {
      throw UserError(file + ": entry " + shown(parsed) + " is there twice, expected once");
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), see);
  } catch (const nlohmann::json::parse_error& error) {
    throw UserError(file + ": byte " + std::to_string(offset + (error.byte > 0 ? error.byte - 1 : 0)) +
                    ": found no valid JSON, expected a JSON object");
  } catch (const nlohmann::json::out_of_range& error) {
    const std::string what = error.what();  // "... number overflow parsing '1e400'"
    throw UserError(file + ": found the number " + abridged(what.substr(what.rfind(' ') + 1)) +
                    ", expected one within the range of a double");
  }
}

std::string shown(const nlohmann::json& value) {
  return abridged(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
}

}  // namespace hero
