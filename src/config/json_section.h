#pragma once
// Reads the keys of a JSON object and rejects those that nothing has read.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace hero {

/// A JSON object of a file. Records every key that is read, so that reject_unknown can report the others.
/// Errors are UserErrors with `where`, the key, the found and the expected value.
class JsonSection {
  using json = nlohmann::json;

 public:
  JsonSection(std::string where, json object) : where_(std::move(where)), object_(std::move(object)) {}

  [[noreturn]] void reject(const std::string& key, const std::string& expected) const;

  /// Whether the key exists and is not null.
  bool has(const std::string& key) const { return object_.contains(key) && !object_[key].is_null(); }
  bool is_null(const std::string& key) const { return object_.contains(key) && object_[key].is_null(); }
  void ignore(const std::string& key) { read_.insert(key); }

  /// The value; UserError if the key is missing and there is no default, or if it has another type.
  int64_t integer(const std::string& key, std::optional<int64_t> default_value = {});
  double number(const std::string& key, std::optional<double> default_value = {});
  bool flag(const std::string& key, std::optional<bool> default_value = {});
  std::string text(const std::string& key, const std::optional<std::string>& default_value = {});
  /// Empty if the key is missing.
  std::vector<int64_t> integers(const std::string& key);
  /// Only validated here; generation reads the key itself.
  void check_token_ids(const std::string& key);
  /// The object of this key; none if it is missing or null.
  std::optional<JsonSection> section(const std::string& key);
  /// For an unsupported feature: the key must be absent, null or one of these values.
  void expect_only(const std::string& key, const std::vector<json>& values, const std::string& feature);

  /// Rejects the first key that no call has read.
  void reject_unknown() const;

 private:
  template <class T, class Check>
  T value(const std::string& key, const std::optional<T>& default_value, const std::string& expected,
          Check valid);

  std::string where_;
  json object_;
  std::set<std::string> read_;
};

}  // namespace hero
