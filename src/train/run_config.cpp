#include "train/run_config.h"

#include <algorithm>

#include "config/fields.h"
#include "config/router_kinds.h"
#include "hf/load.h"
#include "hf/model_config.h"
#include "hf/resolve.h"
#include "io/error.h"
#include "optim/learning_rate.h"

namespace hero {
namespace {

namespace fs = std::filesystem;

// The model as in its config.json, without options that its family does not use.
Config through_config_json(const Config& config, const fs::path& folder) {
  return parse_model_config(model_config_json(config, /*eos=*/-1), folder.string());
}

void check_steps(const Config& config, const CompletedSteps& completed) {
  if (config.train.steps >= completed.count) return;
  throw UserError("train.steps: found " + std::to_string(config.train.steps) + ", expected at least " +
                  std::to_string(completed.count) + ", the step of " + completed.checkpoint.string());
}

// Another train.steps stretches most schedules: the rate would jump, and match neither run.
void check_completed_rates(const Config& own, const Config& requested, const fs::path& path, int64_t done) {
  const OptimConfig& optim = requested.optim;
  const int64_t before = own.train.steps, after = requested.train.steps;
  if (before == after || optim.schedule != own.optim.schedule) return;
  const auto changes = [&](int64_t step) {
    return learning_rate(optim, step, before) != learning_rate(optim, step, after);
  };
  int64_t step = 1;
  while (step <= done && !changes(step)) ++step;
  if (step > done) return;
  throw UserError("train.steps: found " + std::to_string(after) + ", expected " + std::to_string(before) +
                  " as in " + path.string() + ": with " +
                  format_option("optim.schedule", name_of(optim.schedule)) +
                  " the learning rate of completed steps depends on it (from step " + std::to_string(step) +
                  "); pass --optim.decay_steps=N to set the decay, or train with optim.schedule=wsd and end "
                  "the run at several lengths with --branch");
}

}  // namespace

std::string comma_separated(const std::vector<std::string>& parts) {
  std::string text;
  for (const auto& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

std::optional<InitialModel> find_initial_model(const fs::path& init_from) {
  if (init_from.empty()) return std::nullopt;
  return InitialModel{init_from, load_model_config(init_from)};
}

Config base_config(const std::optional<InitialModel>& initial) {
  Config base;
  if (!initial) return base;
  const Config& from = initial->config;
  copy_values(from, base, [&](const Field& field) {
    return field.has(kFromModelFolder) && reads_option(from.router, field);
  });
  base.train.sequence = std::min(base.train.sequence, base.model.max_position_embeddings);
  return base;
}

NewWeights check_init(const InitialModel& initial, const Config& config) {
  const auto& [folder, from] = initial;
  const NewWeights added{
      .history = router_kind_info(config.router).extends == from.router.kind,
      .modules = from.model.num_nextn_predict_layers == 0 && config.model.num_nextn_predict_layers > 0};
  const auto mismatches = differences(
      through_config_json(from, folder), through_config_json(config, folder), [&](const Field& field) {
        return field.has(kMustMatchWeights) && !(added.history && field.key.starts_with("router.")) &&
               !(added.modules && field.key == "model.num_nextn_predict_layers");
      });
  if (!mismatches.empty()) {
    throw UserError(folder.string() + ": its weights belong to another model (" + mismatches.front() +
                    "); they must match");
  }
  check_weights(folder, config, added);
  return added;
}

Config resumed_config(const TrainOptions& options, const fs::path& path,
                      const std::optional<InitialModel>& initial, const CompletedSteps& completed) {
  const auto own = load_config({path.string()}, {});
  auto requested = options.overrides.applied_to(options.overrides.has_files() ? base_config(initial) : own);
  if (requested.model.vocab_size == 0) requested.model.vocab_size = own.model.vocab_size;
  // The default of an option that files do not set is not a request to change it.
  copy_values(own, requested, [&](const Field& field) {
    return field.has(kMayChangeOnResume) && !options.overrides.sets(field.key);
  });
  const auto rejected =
      differences(own, requested, [](const Field& field) { return field.has(kFixedOnResume); });
  if (!rejected.empty()) {
    throw UserError(path.string() + ": the run was started with different settings (" +
                    comma_separated(rejected) + "); resume with its own configuration");
  }
  check_steps(requested, completed);
  if (!options.overrides.flag_sets(kDecaySteps)) check_completed_rates(own, requested, path, completed.count);
  return requested;
}

}  // namespace hero
