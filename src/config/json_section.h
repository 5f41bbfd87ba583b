#pragma once
// Reads the keys of a JSON object and rejects those that nothing has read.
#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "config/toml_file.h"
#include "io/error.h"
#include "io/json.h"

namespace hero {

/// A JSON object of a file. Records every key that is read, so that reject_unknown can report the others.
/// Errors are UserErrors with `where`, the key, the found and the expected value.
class JsonSection {
  using json = nlohmann::json;

 public:
  JsonSection(std::string where, json object) : where_(std::move(where)), object_(std::move(object)) {}

  [[noreturn]] void reject(const std::string& key, const std::string& expected) const {
    throw UserError(where_ + ": " + key + ": found " + (has(key) ? format_value(object_[key]) : "nothing") +
                    ", expected " + expected);
  }

  /// Whether the key exists and is not null.
  bool has(const std::string& key) const { return object_.contains(key) && !object_[key].is_null(); }
  void ignore(const std::string& key) { read_.insert(key); }

  /// The value; UserError if the key is missing and there is no default, or if it has another type.
  int64_t integer(const std::string& key, std::optional<int64_t> default_value = {}) {
    return value<int64_t>(key, default_value, "an integer below 2^53", is_integer);
  }
  double number(const std::string& key, std::optional<double> default_value = {}) {
    return value<double>(key, default_value, "a number", [](const json& v) { return v.is_number(); });
  }
  bool flag(const std::string& key, std::optional<bool> default_value = {}) {
    return value<bool>(key, default_value, "true or false", [](const json& v) { return v.is_boolean(); });
  }
  std::string text(const std::string& key, const std::optional<std::string>& default_value = {}) {
    return value<std::string>(key, default_value, "a string", [](const json& v) { return v.is_string(); });
  }
  std::vector<int64_t> integers(const std::string& key) {
    return value<std::vector<int64_t>>(key, std::vector<int64_t>{}, "a list of integers", [](const json& v) {
      return v.is_array() && std::ranges::all_of(v, is_integer);
    });
  }
  /// Only validated here; generation reads the key itself.
  void check_token_ids(const std::string& key) {
    read_.insert(key);
    const auto valid = [](const json& v) { return is_integer(v); };
    if (has(key) && !valid(object_[key]) &&
        !(object_[key].is_array() && std::ranges::all_of(object_[key], valid))) {
      reject(key, "an integer or a list of integers");
    }
  }
  /// The object of this key; none if it is missing or null.
  std::optional<JsonSection> section(const std::string& key) {
    read_.insert(key);
    if (!has(key)) return std::nullopt;
    if (!object_[key].is_object()) reject(key, "an object");
    return JsonSection(where_ + ": " + key, object_[key]);
  }
  /// For an unsupported feature: the key must be absent, null or one of these values.
  void expect_only(const std::string& key, const std::vector<json>& values, const std::string& feature) {
    read_.insert(key);
    if (has(key) && std::ranges::find(values, object_[key]) == values.end()) {
      reject(key, (values.empty() ? "nothing" : format_value(values[0])) + ": " + feature);
    }
  }

  /// Rejects the first key that no call has read.
  void reject_unknown() const {
    for (const auto& [key, found] : object_.items()) {
      if (!read_.count(key)) {
        throw UserError(where_ + ": " + one_line(key) + ": found " + format_value(found) +
                        ", expected no such key: it may select an unsupported feature");
      }
    }
  }

 private:
  // Integers below 2^53 are exact in every JSON reader, and sums of two do not overflow.
  static constexpr int64_t kMaxInteger = int64_t{1} << 53;

  static bool is_integer(const json& value) {
    if (value.is_number_unsigned()) return value.get<uint64_t>() < kMaxInteger;
    return value.is_number_integer() && value.get<int64_t>() > -kMaxInteger;
  }

  template <class T, class Check>
  T value(const std::string& key, const std::optional<T>& default_value, const std::string& expected,
          Check valid) {
    read_.insert(key);
    if (!has(key) && default_value) return *default_value;
    if (!has(key) || !valid(object_[key])) reject(key, expected);
    return object_[key].get<T>();
  }

  std::string where_;
  json object_;
  std::set<std::string> read_;
};

}  // namespace hero
