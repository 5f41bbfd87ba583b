#include <deque>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/device_option.h"
#include "cli/window_options.h"
#include "data/fingerprint.h"
#include "hf/load.h"
#include "hf/resolve.h"
#include "io/error.h"
#include "io/file_io.h"
#include "io/step_progress.h"
#include "ops/cuda_library.h"
#include "train/evaluate.h"

namespace hero {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct EvalOptions {
  std::string dir;
  DeviceChoice device = DeviceChoice::kAuto;
  std::vector<std::string> data;
  int64_t batch = 8;
  int64_t sequence = 0;  // tokens; 0: train.sequence of the model
};

int64_t sequence_length(const EvalOptions& options, const Config& config) {
  const int64_t longest = config.model.max_position_embeddings;
  if (options.sequence > longest) {
    throw UserError("--sequence: found " + std::to_string(options.sequence) + ", expected at most " +
                    std::to_string(longest) + ", the model's max_position_embeddings");
  }
  return options.sequence ? options.sequence : config.train.sequence;
}

// The data sets; UserError unless their tokenizer is the model's, where both are known.
std::deque<SequentialReader> open_data(const EvalOptions& options, const fs::path& folder, int64_t sequence,
                                       int64_t vocab_size) {
  std::vector<TokenizerIdentity> tokenizers;
  if (auto tokenizer = tokenizer_identity(folder)) tokenizers.push_back(std::move(*tokenizer));
  std::deque<SequentialReader> readers;
  for (const auto& prefix : options.data) {
    auto& reader = readers.emplace_back(prefix, sequence, vocab_size);
    reader.open_mask_if_present();
    if (auto tokenizer = reader.tokenizer()) tokenizers.push_back(std::move(*tokenizer));
  }
  check_same_tokenizer(tokenizers);
  return readers;
}

void run_eval(const EvalOptions& options) {
  const auto device = choose_device(options.device, "--device");
  const auto folder = open_model_folder(options.dir);
  const auto model = load_model(folder, /*dtype=*/std::nullopt, device);
  const auto& config = model->config();
  const int64_t sequence = sequence_length(options, config);
  const auto readers = open_data(options, folder, sequence, config.model.vocab_size);
  ordered_json results = ordered_json::array();
  std::printf("%-40s %12s %10s %12s\n", "data set", "tokens", "loss", "perplexity");
  for (const auto& reader : readers) {
    StepProgress progress("window", reader.windows(),
                          {.rate_unit = "tok", .rate_per_item = static_cast<double>(sequence)});
    const auto result =
        evaluate(*model, reader, sequence, options.batch, [&](int64_t windows) { progress.update(windows); });
    progress.finish();
    const auto name = fs::path(reader.prefix()).filename().string();
    const auto print = [](const std::string& what, const Evaluation::Loss& found) {
      std::printf("%-40s %12ld %10.4f %12.3f\n", what.c_str(), found.tokens, found.loss, found.perplexity);
    };
    print(name, result.all);
    ordered_json entry = {{"name", name},
                          {"tokens", result.all.tokens},
                          {"loss", result.all.loss},
                          {"perplexity", result.all.perplexity},
                          {"token_files", digests_to_json(digest_evaluated_files(reader.prefix()))}};
    if (const auto& trained = result.trained; trained && trained->tokens > 0) {
      print(name + ", loss mask", *trained);
      entry.update({{"trained_tokens", trained->tokens},
                    {"trained_loss", trained->loss},
                    {"trained_perplexity", trained->perplexity}});
    }
    std::fflush(stdout);
    results.push_back(entry);
  }
  // In a run folder, the result of the latest checkpoint is saved for the report. A model folder may have a
  // metrics.jsonl too, but no step.
  const auto step = checkpoint_step(folder.filename().string());
  if (step && fs::exists(fs::path(options.dir) / "metrics.jsonl")) {
    const ordered_json result = {{"step", *step}, {"datasets", results}};
    write_file((fs::path(options.dir) / "eval.json").string(), result.dump(1) + "\n");
  }
}

}  // namespace

void add_eval_command(Command& hero) {
  auto options = std::make_shared<EvalOptions>();
  auto* command = hero.subcommand("eval");
  command
      ->add_option("dir", options->dir,
                   "run folder (its latest checkpoint; writes eval.json), checkpoint or model folder")
      .required();
  command
      ->add_option(
          "--data", options->data,
          "prefixes of .bin and .idx files; with loss masks beside them also the loss of the marked tokens")
      .required();
  add_window_options(*command, options->batch, options->sequence);
  add_device_option(*command, options->device);
  command->callback([options] { run_eval(*options); });
}

}  // namespace hero
