#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "analysis/numbers.h"
#include "cli/commands.h"
#include "cli/device_option.h"
#include "hf/load.h"
#include "hf/resolve.h"
#include "io/error.h"
#include "io/python.h"
#include "io/step_progress.h"
#include "ops/cuda_library.h"

namespace hero {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

struct AnalyzeOptions {
  std::string dir, out, baseline, device = "auto";
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
  auto folder = resolve_model_dir(dir);
  auto config = load_model_config(folder);
  return {std::move(folder), std::move(config)};
}

// Before the work is done, not after.
void check_places(const AnalyzeOptions& options) {
  std::error_code error;
  fs::path place = fs::absolute(options.out);
  while (!fs::exists(place, error) && place != place.parent_path()) place = place.parent_path();
  if (!fs::is_directory(place, error)) {
    throw UserError("--out " + options.out + ": found a file at " + place.string() +
                    ", expected a new folder, or that of an earlier analysis");
  }
  if (access(place.c_str(), W_OK) != 0)
    throw UserError("--out " + options.out + ": " + place.string() + " cannot be written into");
  for (const auto& run : options.runs) {
    if (!fs::is_regular_file(fs::path(run) / "metrics.jsonl", error))
      throw UserError("--runs " + run + ": found no metrics.jsonl, expected a run folder");
  }
}

json pair_json(const AnalyzeOptions& options, const HistoryLayout& layout) {
  auto pair = default_pair(layout);
  if (!options.pair.empty()) {
    pair = LayerPair{options.pair[0], options.pair[1]};
    const bool layer = pair->layer >= 1 && pair->layer <= layout.layers();
    if (!layer || !std::ranges::count(layout.visible(pair->layer), pair->predecessor)) {
      throw UserError("--pair " + std::to_string(pair->layer) + "," + std::to_string(pair->predecessor) +
                      ": expected a layer, from 1 to " + std::to_string(layout.layers()) +
                      ", and one that it sees");
    }
  }
  return pair ? json{{"layer", pair->layer}, {"predecessor", pair->predecessor}} : json(nullptr);
}

int64_t chosen_sequence(const AnalyzeOptions& options, const std::vector<ModelFolder>& models) {
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

// The model, then the baseline where there is one: whether both read the same ids.
std::vector<ModelFolder> open_models(const AnalyzeOptions& options, const ModelFolder& model) {
  std::vector<ModelFolder> models = {model};
  if (!options.baseline.empty()) models.push_back(open_folder(options.baseline));
  for (const auto& [folder, config] : models) {
    check_weights(folder, config);
    if (config.model.vocab_size != model.config.model.vocab_size) {
      throw UserError(folder.string() + ": model.vocab_size = " + std::to_string(config.model.vocab_size) +
                      ", expected " + std::to_string(model.config.model.vocab_size) + ", that of " +
                      model.folder.string());
    }
    if (moe_layers(config.model) == 0)
      throw UserError(folder.string() + ": found no MoE layer, expected one at least");
  }
  return models;
}

Passages open_passages(const AnalyzeOptions& options, const std::vector<ModelFolder>& models) {
  const int64_t sequence = chosen_sequence(options, models);
  std::vector<KnownTokenizer> known;
  for (const auto& [folder, config] : models) {
    if (auto tokenizer = tokenizer_of(folder)) known.push_back(*tokenizer);
  }
  std::vector<TokenSet> sets;
  for (const auto& path : options.data) {
    sets.push_back(open_token_set(path, models[0].folder, sequence, models[0].config.model.vocab_size));
    if (sets.back().tokenizer) known.push_back(*sets.back().tokenizer);
  }
  check_same_tokenizer(known);
  return Passages(std::move(sets), sequence, options.tokens);
}

void add_passes(json& numbers, const AnalyzeOptions& options, const ModelFolder& analysed,
                const Coupling& coupling) {
  const auto device = choose_device(options.device, "--device");
  const auto models = open_models(options, analysed);
  const auto passages = open_passages(options, models);
  const ProgressOptions rate{.rate_unit = "tok", .rate_per_item = static_cast<double>(passages.sequence())};
  {
    const auto model = load_model(analysed.folder, /*dtype=*/"", device);
    const auto& layout = model->layout();
    StepProgress progress("window", passages.windows() * history_passes(layout), rate);
    const auto effects =
        history_effects(*model, passages, options.batch, [&](int64_t windows) { progress.update(windows); });
    progress.finish();
    numbers["data"] = {{"names", passages.names()},
                       {"tokens", effects.utilisation.tokens},
                       {"sequence", passages.sequence()},
                       {"loss", effects.utilisation.loss}};
    numbers.update(effects_json(effects, analysed.config, layout, coupling));
    if (Tokenizer::in_folder(analysed.folder.string())) {
      numbers["paths"]["text"] = token_texts(Tokenizer(analysed.folder.string()),
                                             numbers["paths"]["ids"].get<std::vector<int64_t>>());
    }
  }
  if (models.size() == 1) return;
  const auto& [folder, config] = models[1];
  StepProgress progress("baseline window", passages.windows(), rate);
  const auto baseline = utilisation(*load_model(folder, /*dtype=*/"", device), passages, options.batch,
                                    [&](int64_t windows) { progress.update(windows); });
  progress.finish();
  add_baseline(numbers["utilisation"], folder, config, baseline);
}

void run_analyze(const AnalyzeOptions& options) {
  check_places(options);
  const auto model = open_folder(options.dir);
  const RouterHistory history(model.folder, model.config);
  const auto strengths = coupling(history);
  json numbers = {{"model", model_json(model.folder, model.config)}};
  numbers.update(coupling_json(strengths));
  numbers["default_pair"] = pair_json(options, history.layout());
  if (!options.data.empty()) add_passes(numbers, options, model, strengths);
  write_numbers(options.out, numbers, history);
  if (options.numbers_only) return;
  std::vector<std::string> arguments = {options.out};
  if (!options.runs.empty()) arguments.push_back("--runs");
  arguments.insert(arguments.end(), options.runs.begin(), options.runs.end());
  become_python("hero_moe.analysis", arguments);
}

}  // namespace

void add_analyze_command(CLI::App& hero) {
  auto options = std::make_shared<AnalyzeOptions>();
  auto* command = hero.add_subcommand(
      "analyze", "What a model's routers make of their history: numbers, figures and a page");
  command->add_option("dir", options->dir, "run folder (its latest checkpoint), checkpoint or model folder")
      ->required();
  command->add_option("--out", options->out, "folder for the numbers, the figures and the page")->required();
  auto* data = command->add_option("--data", options->data,
                                   "prefixes of .bin and .idx files, or benchmark files (.jsonl): adds what "
                                   "forward passes show");
  command->add_option("--baseline", options->baseline, "another model, whose use of experts is compared")
      ->needs(data);
  command->add_option("--tokens", options->tokens, "most tokens read, in whole windows, over all data")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  command->add_option("--batch", options->batch, "sequences computed at a time")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command
      ->add_option("--sequence", options->sequence,
                   "tokens of a window; 0: as in training, and at most 512 where that is not known")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command
      ->add_option("--pair", options->pair,
                   "L,P: layer and predecessor that figures show first; else 10,9 or the middle one")
      ->delimiter(',')
      ->expected(2);
  auto* runs = command->add_option("--runs", options->runs, "run folders whose curves the page shows");
  command->add_flag("--numbers-only", options->numbers_only, "no figures and no page: needs no Python")
      ->excludes(runs);
  add_device_option(*command, options->device);
  command->callback([options] { run_analyze(*options); });
}

}  // namespace hero
