#pragma once
// The options that TOML files and flags set, parsed once, for any configuration that they change.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/fields.h"

namespace hero {

/// The key whose default depends on train.steps.
constexpr std::string_view kWarmupSteps = "optim.warmup_steps";
/// The key that makes the learning rate of a resumed run independent of its old train.steps.
constexpr std::string_view kDecaySteps = "optim.decay_steps";

class ConfigOverrides {
 public:
  ConfigOverrides() = default;
  /// Reads each TOML file in order, then the `--section.key=value` flags. UserError as load_config.
  ConfigOverrides(const std::vector<std::string>& files, const std::vector<std::string>& flags);

  /// `base` with these options; later ones override earlier ones. Unless they set kWarmupSteps, it is at most
  /// train.steps.
  Config applied_to(Config base) const;

  /// Whether a file or flag sets the key.
  bool sets(std::string_view key) const;

  /// Whether a flag sets the key.
  bool flag_sets(std::string_view key) const;

  bool has_files() const { return has_files_; }

 private:
  void add_file(const std::vector<Field>& list, const std::string& path);
  void add_flag(const std::vector<Field>& list, const std::string& flag);

  std::vector<std::pair<std::string, FieldValue>> values_;  // by key, in order; those of flags are last
  size_t from_files_ = 0;                                   // number of values_ that files set
  bool has_files_ = false;
};

}  // namespace hero
