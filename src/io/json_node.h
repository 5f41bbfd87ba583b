#pragma once
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace hero {

/// A value in a JSON file of somebody else's, that knows its place. What it throws is a UserError
/// "FILE: key.key[3]: found ..., expected ...".
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, const std::string& file, std::string path = "")
      : value_(value), file_(file), path_(std::move(path)) {}

  const nlohmann::json& value() const { return value_; }
  bool null() const { return value_.is_null(); }
  bool has(const std::string& key) const { return value_.is_object() && value_.contains(key); }

  /// A member of an object; UserError when it is missing or this is no object.
  JsonNode at(const std::string& key) const;
  /// The members of an array.
  std::vector<JsonNode> items() const;
  /// UserError for members of an object that are none of `keys`.
  void check_keys(std::initializer_list<const char*> keys) const;

  std::string text() const;
  bool flag() const;
  int64_t integer(int64_t least, int64_t most) const;

  [[noreturn]] void refuse(const std::string& expected) const;

 private:
  const nlohmann::json& value_;
  const std::string& file_;
  std::string path_;
};

/// The JSON text; UserError with the byte where it is none. `file` stands for it.
nlohmann::json parse_json(const std::string& text, const std::string& file);

}  // namespace hero
