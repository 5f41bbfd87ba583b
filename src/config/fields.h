#pragma once
// The list of all options with their attributes, and operations on one option: read it, set it within its
// bounds, write it as TOML. All generic code uses this list.
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "config/config.h"

namespace hero {

/// Value of a field; of an enum, its name.
using FieldValue = std::variant<int64_t, double, bool, std::string, std::vector<int64_t>,
                                std::vector<std::string>, std::vector<DataPhase>>;

/// Attributes of an option, combined with |. Every option has exactly one of the first two. Code that treats
/// some options differently queries attributes instead of listing keys.
enum FieldAttribute : uint32_t {
  kFixedOnResume = 1 << 0,          ///< a resumed run must use the value that the run was started with
  kMayChangeOnResume = 1 << 1,      ///< a resumed run may use another value
  kMayDifferBetweenRanks = 1 << 2,  ///< the ranks of a run may use different values
  kMayDifferInStudy = 1 << 3,       ///< hero study continues an existing run that has another value
  kFromModelFolder = 1 << 4,        ///< --init-from takes the value of the source model
  kMustMatchWeights = 1 << 5,       ///< --init-from rejects other values: the weights would not fit
  kInConfigJson = 1 << 6,           ///< config.json of a model folder contains the value
  kHistoryOnly = 1 << 7,            ///< read only by routers with a routing history
  kSetsChunks = 1 << 8,             ///< sets the default chunk boundaries of a pipeline
  kGroupedQueryOnly = 1 << 9,       ///< not read if model.model_type is "deepseek_v3"
  kDeepseekOnly = 1 << 10,          ///< read only if model.model_type is "deepseek_v3"
  kYarnOnly = 1 << 11,              ///< read only if model.rope_scaling.type is "yarn"
  kPipelineOnly = 1 << 12,          ///< read only with several pipeline ranks
  kMuonOnly = 1 << 13,              ///< read only if optim.kind is "muon"
  kMatrixSize = 1 << 14,            ///< size of matrices for which our CPU kernels require a multiple of 16
  kEqualInStudy = 1 << 15,          ///< all variants of a study must have the same value
  kSelectsHistory = 1 << 16,        ///< selects the earlier layers that a router sees, S(l), and nothing else
};

/// A member of any enum of config/choices.h.
struct ChoiceRef {
  void* member;
  std::string (*get)(const void* member);              ///< name of the value
  bool (*set)(void* member, const std::string& name);  ///< false and no change if there is no such name
};

/// One option. `value` points into the Config passed to fields(). Numbers have a `min`, integers and integer
/// lists also a `max`, strings and enums `choices`.
struct Field {
  std::string key;          ///< "router.window"
  uint32_t attributes = 0;  ///< of FieldAttribute
  std::variant<int64_t*, double*, bool*, std::string*, std::vector<int64_t>*, std::vector<std::string>*,
               std::vector<DataPhase>*, ChoiceRef>
      value;
  std::string help;
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;  ///< min is exclusive
  bool below_max = false;  ///< max is exclusive
  std::vector<std::string> choices = {};
  std::vector<std::string> aliases = {};  ///< alternative keys in files and flags

  /// Whether the option has all of `wanted` and none of `unwanted`.
  bool has(uint32_t wanted, uint32_t unwanted = 0) const {
    return (attributes & wanted) == wanted && (attributes & unwanted) == 0;
  }
};

/// Selects options, usually by attributes.
using FieldFilter = std::function<bool(const Field&)>;

/// All options of `config`, by section.
std::vector<Field> fields(Config& config);

/// The field with this key or alias; nullptr if there is none.
const Field* find_field(const std::vector<Field>& list, const std::string& key);

/// The key with the smallest edit distance to `key`. The right name in the wrong section has distance 1.
std::string nearest_key(const std::vector<Field>& list, const std::string& key);

/// Keys of the options that `selected` selects, in the order of fields().
std::vector<std::string> keys_with(const FieldFilter& selected);

/// Keys of the options with all attributes of `wanted` and none of `unwanted`.
std::vector<std::string> keys_with(uint32_t wanted, uint32_t unwanted = 0);

/// As differences(a, b), only the options that `compared` selects.
std::vector<std::string> differences(const Config& a, const Config& b, const FieldFilter& compared);

/// Copies the values of the options that `selected` selects from `from` to `to`.
void copy_values(const Config& from, Config& to, const FieldFilter& selected);

/// True if a key begins with `name.`.
bool is_section(const std::vector<Field>& list, const std::string& name);

FieldValue read(const Field& field);

/// Sets the field; integers convert to float. Returns false and changes nothing if the type, bounds or
/// choices do not allow the value, or if it is not finite.
bool assign(const Field& field, const FieldValue& value);

/// TOML literal of the value. Floats round-trip exactly and never look like integers.
std::string literal(const FieldValue& value);

/// "router.window = 3", on one line, for messages.
std::string format_option(const std::string& key, const FieldValue& value);

/// "integer", "float", "bool", "string", "integers", "strings" or "tables".
std::string type_name(const Field& field);

/// Allowed values, for messages: "an integer from 0 to 2147483647", "one of baseline, hero".
std::string expected(const Field& field);

/// Bounds or choices, for --help: ">= 0", "> 0", "baseline|hero". Omits the general limit of integers.
std::string bounds(const Field& field);

/// A phase as a JSON object with the keys of its TOML table.
template <typename Json>
void to_json(Json& json, const DataPhase& phase) {
  json = Json::object();
  if (phase.until_step > 0) json["until_step"] = phase.until_step;
  if (phase.until_tokens > 0) json["until_tokens"] = phase.until_tokens;
  json["blend"] = phase.blend;
}

}  // namespace hero
