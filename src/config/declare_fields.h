#pragma once
// How an option is declared: key, attributes, member, bounds or choices, help. Only the files with the
// declarations include this.
#include <string>
#include <utility>
#include <vector>

#include "config/fields.h"

namespace hero {

/// The options of the section [model].
std::vector<Field> model_fields(ModelConfig& model);

namespace declare {

// Sizes are at most 2^31 - 1, so that a product of two fits in 64 bits. The seed is below 2^53, which every
// JSON reader represents exactly.
constexpr double kIntegerLimit = 2147483647;
constexpr double kLayerLimit = 65535;
constexpr double kSeedLimit = 9007199254740991;

/// An option of the model that --init-from may change, such as the RoPE scaling.
constexpr uint32_t kAdjustableModel = kFixedOnResume | kFromModelFolder | kInConfigJson;
/// An option of the model that must match the loaded weights.
constexpr uint32_t kModel = kAdjustableModel | kMustMatchWeights;

inline Field integer(std::string key, uint32_t attributes, int64_t* value, double min, std::string help,
                     double max = kIntegerLimit) {
  return {.key = std::move(key),
          .attributes = attributes,
          .value = value,
          .help = std::move(help),
          .min = min,
          .max = max};
}

inline Field non_negative(std::string key, uint32_t attributes, double* value, std::string help) {
  return {.key = std::move(key), .attributes = attributes, .value = value, .help = std::move(help), .min = 0};
}

inline Field at_least(double min, std::string key, uint32_t attributes, double* value, std::string help) {
  Field field = non_negative(std::move(key), attributes, value, std::move(help));
  field.min = min;
  return field;
}

inline Field positive(std::string key, uint32_t attributes, double* value, std::string help) {
  Field field = non_negative(std::move(key), attributes, value, std::move(help));
  field.above_min = true;
  return field;
}

/// At least 0 and below 1.
inline Field fraction(std::string key, uint32_t attributes, double* value, std::string help) {
  Field field = non_negative(std::move(key), attributes, value, std::move(help));
  field.max = 1, field.below_max = true;
  return field;
}

/// A list of integers of at least `min`.
inline Field integers(std::string key, uint32_t attributes, std::vector<int64_t>* value, double min,
                      std::string help) {
  return {.key = std::move(key),
          .attributes = attributes,
          .value = value,
          .help = std::move(help),
          .min = min,
          .max = kIntegerLimit};
}

/// A string.
inline Field text(std::string key, uint32_t attributes, std::string* value, std::string help) {
  return {.key = std::move(key), .attributes = attributes, .value = value, .help = std::move(help)};
}

/// A list of strings.
inline Field texts(std::string key, uint32_t attributes, std::vector<std::string>* value, std::string help) {
  return {.key = std::move(key), .attributes = attributes, .value = value, .help = std::move(help)};
}

inline Field flag(std::string key, uint32_t attributes, bool* value, std::string help) {
  return {.key = std::move(key), .attributes = attributes, .value = value, .help = std::move(help)};
}

/// One of the names of an enum.
template <Choice E>
// NOLINTNEXTLINE(performance-unnecessary-value-param): both strings are moved from
Field choice(std::string key, uint32_t attributes, E* value, std::string help) {
  const ChoiceRef member = {
      .member = value,
      .get = [](const void* from) { return name_of(*static_cast<const E*>(from)); },
      .set =
          [](void* to, const std::string& name) {
            const auto found = find_choice<E>(name);
            if (found) *static_cast<E*>(to) = *found;
            return found.has_value();
          },
  };
  return {.key = std::move(key),
          .attributes = attributes,
          .value = member,
          .help = std::move(help),
          .choices = names_of<E>()};
}

inline Field with_aliases(Field field, std::vector<std::string> aliases) {
  field.aliases = std::move(aliases);
  return field;
}

}  // namespace declare
}  // namespace hero
