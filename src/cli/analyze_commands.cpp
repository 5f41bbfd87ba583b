#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "analysis/results.h"
#include "checkpoint/checkpoint.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/device_option.h"
#include "cli/window_options.h"
#include "hf/load.h"
#include "io/error.h"
#include "io/python.h"
#include "io/step_progress.h"
#include "ops/cuda_library.h"

namespace hero {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct AnalyzeOptions {
  std::string dir, out, baseline;
  DeviceChoice device = DeviceChoice::kAuto;
  std::vector<std::string> data, runs;
  std::vector<int64_t> pair;
  int64_t tokens = 1 << 18, batch = 8, sequence = 0;
  bool numbers_only = false;
};

/// A model folder with its configuration.
struct ModelFolder {
  fs::path folder;
  Config config;
};

ModelFolder open_folder(const std::string& dir) {
  auto folder = open_model_folder(dir);
  auto config = load_model_config(folder);
  return {std::move(folder), std::move(config)};
}

// Fails before the analysis starts, not after it.
void check_paths(const AnalyzeOptions& options) {
  std::error_code error;
  fs::path existing = fs::absolute(options.out);
  while (!fs::exists(existing, error) && existing != existing.parent_path())
    existing = existing.parent_path();
  if (!fs::is_directory(existing, error)) {
    throw UserError("--out " + options.out + ": found a file at " + existing.string() +
                    ", expected a new folder, or the folder of an earlier analysis");
  }
  if (access(existing.c_str(), W_OK) != 0)
    throw UserError("--out " + options.out + ": " + existing.string() + " is not writable");
  for (const auto& run : options.runs) {
    if (!fs::is_regular_file(fs::path(run) / "metrics.jsonl", error))
      throw UserError("--runs " + run + ": found no metrics.jsonl, expected a run folder");
  }
}

ordered_json pair_json(const AnalyzeOptions& options, const HistoryLayout& layout) {
  auto pair = default_pair(layout);
  if (!options.pair.empty()) {
    pair = LayerPair{options.pair[0], options.pair[1]};
    const bool layer = pair->layer >= 1 && pair->layer <= layout.layers();
    if (!layer || !std::ranges::count(layout.visible(pair->layer), pair->predecessor)) {
      throw UserError("--pair " + std::to_string(pair->layer) + "," + std::to_string(pair->predecessor) +
                      ": expected a layer, from 1 to " + std::to_string(layout.layers()) +
                      ", and a preceding layer visible to it");
    }
  }
  return pair ? ordered_json{{"layer", pair->layer}, {"predecessor", pair->predecessor}}
              : ordered_json(nullptr);
}

int64_t sequence_length(const AnalyzeOptions& options, const std::vector<ModelFolder>& models) {
  const int64_t sequence = options.sequence ? options.sequence : models[0].config.train.sequence;
  for (const auto& [folder, config] : models) {
    if (sequence > config.model.max_position_embeddings) {
      throw UserError("--sequence: found " + std::to_string(sequence) + ", expected at most " +
                      std::to_string(config.model.max_position_embeddings) +
                      ", the max_position_embeddings of " + folder.string());
    }
  }
  return sequence;
}

// The model, then the baseline if given. Checks that both have the same vocabulary size.
std::vector<ModelFolder> open_models(const AnalyzeOptions& options, const ModelFolder& model) {
  std::vector<ModelFolder> models = {model};
  if (!options.baseline.empty()) models.push_back(open_folder(options.baseline));
  for (const auto& [folder, config] : models) {
    check_weights(folder, config);
    if (config.model.vocab_size != model.config.model.vocab_size) {
      throw UserError(folder.string() + ": model.vocab_size = " + std::to_string(config.model.vocab_size) +
                      ", expected " + std::to_string(model.config.model.vocab_size) + ", as in " +
                      model.folder.string());
    }
    if (moe_layers(config.model) == 0)
      throw UserError(folder.string() + ": found no MoE layer, expected at least one");
  }
  return models;
}

TokenWindows open_token_windows(const AnalyzeOptions& options, const std::vector<ModelFolder>& models) {
  const int64_t sequence = sequence_length(options, models);
  std::vector<TokenizerIdentity> tokenizers;
  for (const auto& [folder, config] : models) {
    if (auto tokenizer = tokenizer_identity(folder)) tokenizers.push_back(*tokenizer);
  }
  std::vector<TokenDataset> datasets;
  for (const auto& path : options.data) {
    datasets.push_back(
        open_token_dataset(path, models[0].folder, sequence, models[0].config.model.vocab_size));
    if (const auto& tokenizer = datasets.back().tokenizer) tokenizers.push_back(*tokenizer);
  }
  check_same_tokenizer(tokenizers);
  return TokenWindows(std::move(datasets), sequence, options.tokens);
}

void add_forward_results(ordered_json& results, const AnalyzeOptions& options, const ModelFolder& target,
                         const Coupling& coupling) {
  const auto device = choose_device(options.device, "--device");
  const auto models = open_models(options, target);
  const auto token_windows = open_token_windows(options, models);
  const ProgressOptions rate{.rate_unit = "tok",
                             .rate_per_item = static_cast<double>(token_windows.sequence())};
  {
    const auto model = load_model(target.folder, target.config, device);
    const auto& layout = model->layout();
    StepProgress progress("window", token_windows.windows() * history_passes(layout), rate);
    const auto effects = history_effects(*model, token_windows, options.batch,
                                         [&](int64_t windows) { progress.update(windows); });
    progress.finish();
    results["data"] = {{"names", token_windows.names()},
                       {"tokens", effects.utilization.tokens},
                       {"sequence", token_windows.sequence()},
                       {"loss", effects.utilization.loss}};
    results.update(effects_json(effects, target.config, layout, coupling));
    if (Tokenizer::in_folder(target.folder.string())) {
      results["paths"]["text"] =
          token_texts(Tokenizer(target.folder.string()), results["paths"]["ids"].get<std::vector<int64_t>>());
    }
  }
  if (models.size() == 1) return;
  const auto& [folder, config] = models[1];
  StepProgress progress("baseline window", token_windows.windows(), rate);
  const auto baseline = utilization(*load_model(folder, config, device), token_windows, options.batch,
                                    [&](int64_t windows) { progress.update(windows); });
  progress.finish();
  add_baseline(results["utilisation"], folder, config, baseline);
}

void run_analyze(const AnalyzeOptions& options) {
  check_paths(options);
  const auto model = open_folder(options.dir);
  const RouterHistory history(model.folder, model.config);
  const auto strengths = coupling(history);
  ordered_json results = {{"model", model_json(model.folder, model.config)}};
  results.update(coupling_json(strengths));
  results["default_pair"] = pair_json(options, history.layout());
  if (!options.data.empty()) add_forward_results(results, options, model, strengths);
  write_results(options.out, results, history);
  if (options.numbers_only) return;
  std::vector<std::string> arguments = {options.out};
  if (!options.runs.empty()) arguments.push_back("--runs");
  arguments.insert(arguments.end(), options.runs.begin(), options.runs.end());
  exec_python("hero_moe.analysis", arguments);
}

}  // namespace

void add_analyze_command(Command& hero) {
  auto options = std::make_shared<AnalyzeOptions>();
  auto* command = hero.subcommand("analyze");
  command->add_option("dir", options->dir, "run folder (its latest checkpoint), checkpoint or model folder")
      .required();
  command->add_option("--out", options->out, "output folder for results, figures and the page").required();
  auto data =
      command->add_option("--data", options->data,
                          "prefixes of .bin and .idx files, or benchmark files (.jsonl), for statistics "
                          "that need forward passes");
  command->add_option("--baseline", options->baseline, "another model whose expert utilization is compared")
      .needs(data);
  command->add_option("--tokens", options->tokens, "maximum tokens over all data, in whole windows")
      .range(int64_t{1}, int64_t{1} << 40)
      .show_default()
      .needs(data);
  for (auto& option : add_window_options(*command, options->batch, options->sequence)) option.needs(data);
  command
      ->add_option("--pair", options->pair,
                   "L,P: layer and predecessor that figures show first; default: 10,9 or the middle pair")
      .delimiter(',')
      .count(2);
  auto runs = command->add_option("--runs", options->runs,
                                  "run folders whose training curves are included in the page");
  command
      ->add_flag("--numbers-only", options->numbers_only,
                 "write results only, without figures and page; needs no Python")
      .excludes(runs);
  add_device_option(*command, options->device);
  command->callback([options] { run_analyze(*options); });
}

}  // namespace hero
