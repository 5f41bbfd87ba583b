#pragma once
#include <initializer_list>
#include <string>
#include <vector>

#include "io/json.h"

namespace hero {

/// A value in a third-party JSON file, with its path; every key that a file has or lacks is significant.
/// Errors are UserErrors "FILE: key.key[3]: found ..., expected ...". JsonSection is for objects of options
/// with defaults.
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, const std::string& file, std::string path = "")
      : value_(value), file_(file), path_(std::move(path)) {}

  const nlohmann::json& value() const { return value_; }
  bool null() const { return value_.is_null(); }
  bool has(const std::string& key) const { return value_.is_object() && value_.contains(key); }

  /// Member of an object. UserError if it is missing or this is not an object.
  JsonNode at(const std::string& key) const;
  /// Elements of an array.
  std::vector<JsonNode> items() const;
  /// Keys of an object.
  std::vector<std::string> keys() const;
  /// UserError if an object has a key that is not in `keys`.
  void check_keys(std::initializer_list<const char*> keys) const;

  std::string text() const;
  bool flag() const;
  int64_t integer(int64_t least, int64_t most) const;

  [[noreturn]] void reject(const std::string& expected) const;

 private:
  const nlohmann::json& value_;
  const std::string& file_;
  std::string path_;
};

}  // namespace hero
