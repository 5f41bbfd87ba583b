#include "io/strict_json.h"

#include <set>
#include <vector>

#include "io/error.h"

namespace hero {
namespace {

using nlohmann::json;

constexpr size_t kDeepest = 100;

std::string abridged(const std::string& text) {
  return text.size() <= 80 ? text : text.substr(0, 77) + "...";
}

// Reads along and keeps nothing but the keys of the open objects. (The library's callback parser, which could
// build the value on the way, takes time quadratic in the entries of an object.)
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
      throw UserError(file_ + ": entry " + shown(name) + " is there twice, expected once");
    return true;
  }
  bool parse_error(size_t byte, const std::string&, const json::exception& error) override {
    if (dynamic_cast<const json::out_of_range*>(&error)) {
      const std::string what = error.what();  // "... number overflow parsing '1e400'"
      throw UserError(file_ + ": found the number " + abridged(what.substr(what.rfind(' ') + 1)) +
                      ", expected one within the range of a double");
    }
    throw UserError(file_ + ": byte " + std::to_string(offset_ + (byte > 0 ? byte - 1 : 0)) +
                    ": found no valid JSON, expected a JSON object");
  }

 private:
  bool open() {
    if (keys_.size() >= kDeepest) {
      throw UserError(file_ + ": found values nested more than " + std::to_string(kDeepest) +
                      " deep, expected a JSON object of few levels");
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
  std::vector<std::set<std::string>> keys_;  // of the open objects; none of an array
};

}  // namespace

json parse_strict(std::string_view text, const std::string& file, size_t offset) {
  Checker checker(file, offset);
  json::sax_parse(text.begin(), text.end(), &checker);
  return json::parse(text.begin(), text.end());
}

std::string shown(const json& value) {
  return abridged(value.dump(-1, ' ', true, json::error_handler_t::replace));
}

}  // namespace hero
