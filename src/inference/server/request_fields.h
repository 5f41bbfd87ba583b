#pragma once
// The fields that POST /v1/completions and /v1/chat/completions share.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "inference/server/completion_request.h"

namespace hero {

/// Reads the fields of an object; null counts as absent. ApiError 400 for other types and values.
class RequestFields {
 public:
  explicit RequestFields(const nlohmann::json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  const nlohmann::json* find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  bool boolean(const char* name) const {
    const nlohmann::json* value = find(name);
    if (value && !value->is_boolean()) reject(name, *value, "true or false");
    return value && value->get<bool>();
  }
  std::optional<int64_t> integer(const char* name, int64_t min, int64_t max) const {
    const nlohmann::json* value = find(name);
    if (!value) return std::nullopt;
    const bool fits_int64 = value->is_number_integer() &&
                            !(value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{INT64_MAX});
    if (!fits_int64 || value->get<int64_t>() < min || value->get<int64_t>() > max) {
      reject(name, *value, "an integer from " + std::to_string(min) + " to " + std::to_string(max));
    }
    return value->get<int64_t>();
  }
  double number(const char* name, double default_value, double min, double max, const char* expected) const {
    const nlohmann::json* value = find(name);
    if (!value) return default_value;
    if (!value->is_number() || !(value->get<double>() >= min && value->get<double>() <= max)) {
      reject(name, *value, expected);
    }
    return value->get<double>();
  }
  std::string string(const char* name) const {
    const nlohmann::json* value = find(name);
    if (!value) return "";
    if (!value->is_string()) reject(name, *value, "a string");
    return value->get<std::string>();
  }
  /// Rejects an unsupported field that is present, unless it has its neutral value.
  void neutral(const char* name, bool is_neutral, const std::string& expected) const {
    if (const nlohmann::json* value = find(name); value && !is_neutral)
      reject(name, *value, expected + ": this server does not support it");
  }
  [[noreturn]] void reject(const char* name, const nlohmann::json& found, const std::string& expected) const {
    reject_field(prefix_ + name, found, expected);
  }

 private:
  const nlohmann::json& object_;
  std::string prefix_;
};

/// The fields that read_sampling reads, and `own`.
std::vector<std::string_view> with_shared_fields(std::vector<std::string_view> own);

/// Reads model, n, temperature, top_p, top_k, seed, stop, stream, stream_options and ignore_eos. Ignores
/// user; rejects the penalties and logit_bias.
void read_sampling(const RequestFields& fields, CompletionRequest& request);

}  // namespace hero
