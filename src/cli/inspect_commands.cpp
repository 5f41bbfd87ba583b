#include <CLI/CLI.hpp>

#include "analysis/activations.h"
#include "cli/commands.h"
#include "cli/device_option.h"
#include "hf/load.h"
#include "hf/resolve.h"
#include "inference/logits.h"
#include "inference/token_lists.h"
#include "io/error.h"
#include "ops/cuda_library.h"
#include "tokenizer/tokenizer.h"

namespace hero {
namespace {

struct LogitsOptions {
  std::string dir, tokens, out, dtype = "fp32", device = "auto";
  bool routing = false, gradients = false;
};

void run_logits(const LogitsOptions& options) {
  const auto model = load_model(options.dir, options.dtype, choose_device(options.device, "--device"));
  const auto tokens = read_token_lists(options.tokens, model->config().model);
  auto tensors = model_logits(*model, tokens, options.routing);
  if (options.gradients) {
    for (auto& tensor : model_gradients(*model, tokens)) tensors.push_back(std::move(tensor));
  }
  write_tensors(options.out, tensors);
}

struct DiffOptions {
  std::string a, b, text, tokens, dtype = "fp32", device = "auto";
  double tolerance = 1e-5;
};

std::vector<int64_t> diff_tokens(const DiffOptions& options, const Transformer& a) {
  if (!options.tokens.empty()) return read_token_lists(options.tokens, a.config().model)[0];
  const auto ids = Tokenizer(resolve_model_dir(options.a).string()).encode(options.text);
  if (ids.empty()) throw UserError("--text: found no tokens, expected some text");
  return {ids.begin(), ids.end()};
}

// Prints the difference at every place; whether all are within the tolerance.
bool same_activations(const DiffOptions& options, const Transformer& a, const Transformer& b) {
  const auto tokens = diff_tokens(options, a);
  const int64_t vocabulary = std::min(a.config().model.vocab_size, b.config().model.vocab_size);
  for (const int64_t id : tokens) {
    if (id >= vocabulary)
      throw UserError("token " + std::to_string(id) + ": expected ids below " + std::to_string(vocabulary) +
                      ", the smaller vocabulary");
  }
  const auto of_a = activations(a, tokens), of_b = activations(b, tokens);
  std::printf("%-20s %14s\n", "place", "difference");
  std::string first;
  for (size_t i = 0; i < of_a.size() && i < of_b.size() && of_a[i].place == of_b[i].place; ++i) {
    const double difference = relative_difference(of_a[i].values, of_b[i].values);
    if (first.empty() && difference > options.tolerance) first = of_a[i].place;
    std::printf("%-20s %14.3g%s\n", of_a[i].place.c_str(), difference,
                first == of_a[i].place ? "  <- the first beyond the tolerance" : "");
  }
  if (!first.empty()) {
    std::printf("first difference at: %s\n", first.c_str());
  } else if (of_a.size() != of_b.size()) {
    std::printf("equal in the layers that both have: %zu and %zu places\n", of_a.size(), of_b.size());
  } else {
    std::printf("equal within %g of each place's greatest value\n", options.tolerance);
  }
  return first.empty() && of_a.size() == of_b.size();
}

// Whether all activations on the given text are the same; without one, whether the configurations are.
bool same_models(const DiffOptions& options) {
  const auto device = choose_device(options.device, "--device");
  const auto a = load_model(options.a, options.dtype, device),
             b = load_model(options.b, options.dtype, device);
  const auto settings = differences(a->config(), b->config());
  for (const auto& difference : settings) std::printf("%s\n", difference.c_str());
  if (options.text.empty() && options.tokens.empty()) {
    if (settings.empty()) std::printf("equal configurations; --text compares the models layer by layer\n");
    return settings.empty();
  }
  return same_activations(options, *a, *b);
}

CLI::Option* add_dtype(CLI::App* command, std::string& dtype) {
  return command->add_option("--dtype", dtype, "type of the computation")
      ->check(CLI::IsMember({"fp32", "fp64", "bf16"}))
      ->capture_default_str();
}

}  // namespace

void add_inspect_commands(CLI::App& hero, int& status) {
  auto logits = std::make_shared<LogitsOptions>();
  auto* logits_command = hero.add_subcommand("logits", "Logits, routing and gradients for given tokens");
  logits_command
      ->add_option("dir", logits->dir, "run folder (its latest checkpoint), checkpoint or model folder")
      ->required();
  logits_command->add_option("--tokens", logits->tokens, "JSON file: a list of lists of token ids")
      ->required();
  logits_command->add_option("--out", logits->out, "safetensors file to write: logits.{n} [S, V]")
      ->required();
  logits_command->add_flag("--routing", logits->routing,
                           "also router_logits.{n}.{l}, topk_ids.{n}.{l}, topk_weights.{n}.{l}, l from 1");
  logits_command->add_flag("--gradients", logits->gradients,
                           "also loss, lm_loss, balance_loss and grad.NAME of all lists as one batch");
  add_dtype(logits_command, logits->dtype);
  add_device_option(*logits_command, logits->device);
  logits_command->callback([logits] { run_logits(*logits); });

  auto diff = std::make_shared<DiffOptions>();
  auto* diff_command =
      hero.add_subcommand("diff", "Where two models differ: configurations, then layer by layer");
  diff_command->footer(
      "Exit status: 0 where the models compute the same on the given text, or where, without one, their "
      "configurations are equal; else 1.");
  diff_command->add_option("a", diff->a, "run folder, checkpoint or model folder")->required();
  diff_command->add_option("b", diff->b, "the other")->required();
  auto* text =
      diff_command->add_option("--text", diff->text, "text to run both on, by the first one's tokenizer");
  auto* tokens =
      diff_command->add_option("--tokens", diff->tokens, "JSON file of token ids instead (its first list)");
  text->excludes(tokens);
  diff_command->add_option("--tolerance", diff->tolerance, "of |a - b| over the greatest |a|")
      ->capture_default_str();
  add_dtype(diff_command, diff->dtype);
  add_device_option(*diff_command, diff->device);
  diff_command->callback([diff, &status] { status = same_models(*diff) ? 0 : 1; });
}

}  // namespace hero
