#include "config/json_section.h"

#include <algorithm>

#include "io/error.h"
#include "io/json.h"
#include "io/one_line.h"

namespace hero {
namespace {

using nlohmann::json;

// Integers below 2^53 are exact in every JSON reader, and sums of two do not overflow.
constexpr int64_t kMaxInteger = int64_t{1} << 53;

bool is_integer(const json& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>() < kMaxInteger;
  return value.is_number_integer() && value.get<int64_t>() > -kMaxInteger;
}

bool is_list_of_integers(const json& value) {
  return value.is_array() && std::ranges::all_of(value, is_integer);
}

}  // namespace

void JsonSection::reject(const std::string& key, const std::string& expected) const {
  throw UserError(where_ + ": " + key + ": found " + (has(key) ? format_value(object_[key]) : "nothing") +
                  ", expected " + expected);
}

template <class T, class Check>
T JsonSection::value(const std::string& key, const std::optional<T>& default_value,
                     const std::string& expected, Check valid) {
  read_.insert(key);
  if (!has(key) && default_value) return *default_value;
  if (!has(key) || !valid(object_[key])) reject(key, expected);
  return object_[key].get<T>();
}

int64_t JsonSection::integer(const std::string& key, std::optional<int64_t> default_value) {
  return value(key, default_value, "an integer below 2^53", is_integer);
}

double JsonSection::number(const std::string& key, std::optional<double> default_value) {
  return value(key, default_value, "a number", [](const json& v) { return v.is_number(); });
}

bool JsonSection::flag(const std::string& key, std::optional<bool> default_value) {
  return value(key, default_value, "true or false", [](const json& v) { return v.is_boolean(); });
}

std::string JsonSection::text(const std::string& key, const std::optional<std::string>& default_value) {
  return value(key, default_value, "a string", [](const json& v) { return v.is_string(); });
}

std::vector<int64_t> JsonSection::integers(const std::string& key) {
  return value(key, std::optional(std::vector<int64_t>{}), "a list of integers", is_list_of_integers);
}

void JsonSection::check_token_ids(const std::string& key) {
  read_.insert(key);
  if (has(key) && !is_integer(object_[key]) && !is_list_of_integers(object_[key]))
    reject(key, "an integer or a list of integers");
}

std::optional<JsonSection> JsonSection::section(const std::string& key) {
  read_.insert(key);
  if (!has(key)) return std::nullopt;
  if (!object_[key].is_object()) reject(key, "an object");
  return JsonSection(where_ + ": " + key, object_[key]);
}

void JsonSection::expect_only(const std::string& key, const std::vector<json>& values,
                              const std::string& feature) {
  read_.insert(key);
  if (has(key) && std::ranges::find(values, object_[key]) == values.end())
    reject(key, (values.empty() ? "nothing" : format_value(values[0])) + ": " + feature);
}

void JsonSection::reject_unknown() const {
  for (const auto& [key, found] : object_.items()) {
    if (!read_.count(key)) {
      throw UserError(where_ + ": " + one_line(key) + ": found " + format_value(found) +
                      ", expected no such key: it may select an unsupported feature");
    }
  }
}

}  // namespace hero
