#include "io/strict_json.h"

#include <set>
#include <vector>

#include "io/error.h"

namespace hero {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 100;

std::string truncated(const std::string& text) {
  return text.size() <= 80 ? text : text.substr(0, 77) + "...";
}

// Stores only the keys of open objects. (The library's callback parser, which could also build the value,
// takes time quadratic in the entries of an object.)
class Checker : public nlohmann::json_sax<json> {
 public:
  Checker(const std::string& file, size_t offset) : file_(file), offset_(offset) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return open(); }
  bool start_array(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second)
      throw UserError(file_ + ": entry " + format_value(name) + " is a duplicate key, expected unique keys");
    return true;
  }
  bool parse_error(size_t byte, const std::string&, const json::exception& error) override {
    if (dynamic_cast<const json::out_of_range*>(&error)) {
      const std::string what = error.what();  // "... number overflow parsing '1e400'"
      throw UserError(file_ + ": found number " + truncated(what.substr(what.rfind(' ') + 1)) +
                      ", expected a value in the range of a double");
    }
    throw UserError(file_ + ": byte " + std::to_string(offset_ + (byte > 0 ? byte - 1 : 0)) +
                    ": found invalid JSON, expected a JSON object");
  }

 private:
  bool open() {
    if (keys_.size() >= kMaxDepth) {
      throw UserError(file_ + ": found values nested deeper than " + std::to_string(kMaxDepth) +
                      " levels, expected a flatter JSON object");
    }
    keys_.emplace_back();
    return true;
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  const std::string& file_;
  size_t offset_;
  std::vector<std::set<std::string>> keys_;  // of the open objects; empty for arrays
};

}  // namespace

json parse_strict(std::string_view text, const std::string& file, size_t offset) {
  Checker checker(file, offset);
  json::sax_parse(text.begin(), text.end(), &checker);
  return json::parse(text.begin(), text.end());
}

std::string format_value(const json& value) {
  return truncated(value.dump(-1, ' ', true, json::error_handler_t::replace));
}

}  // namespace hero
