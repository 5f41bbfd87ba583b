#include <algorithm>

#include "analysis/activations.h"
#include "checkpoint/checkpoint.h"
#include "cli/choice_option.h"
#include "cli/command.h"
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
  std::string dir, tokens, out;
  Dtype dtype = Dtype::kFp32;
  DeviceChoice device = DeviceChoice::kAuto;
  bool routing = false, gradients = false;
};

void run_logits(const LogitsOptions& options) {
  const auto device = choose_device(options.device, "--device");
  const auto folder = open_model_folder(options.dir);
  const auto model = load_model(folder, options.dtype, device);
  const auto tokens = read_token_lists(options.tokens, model->config().model);
  auto tensors = model_logits(*model, tokens, options.routing);
  if (options.gradients) {
    for (auto& tensor : model_gradients(*model, tokens)) tensors.push_back(std::move(tensor));
  }
  write_tensors(options.out, tensors);
}

struct DiffOptions {
  std::string a, b, text, tokens;
  bool has_tokens = false, has_text = false;  // given, empty or not
  Dtype dtype = Dtype::kFp32;
  DeviceChoice device = DeviceChoice::kAuto;
  double tolerance = 1e-5;
};

std::vector<int64_t> diff_tokens(const DiffOptions& options, const Transformer& a) {
  if (options.has_tokens) return read_token_lists(options.tokens, a.config().model)[0];
  const auto ids = Tokenizer(resolve_model_dir(options.a).string()).encode(options.text);
  if (ids.empty()) throw UserError("--text: found no tokens, expected some text");
  return {ids.begin(), ids.end()};
}

// Prints the difference of every activation; returns whether all are within the tolerance.
bool same_activations(const DiffOptions& options, const Transformer& a, const Transformer& b) {
  const auto tokens = diff_tokens(options, a);
  const int64_t vocabulary = std::min(a.config().model.vocab_size, b.config().model.vocab_size);
  for (const int64_t id : tokens) {
    if (id >= vocabulary)
      throw UserError("token " + std::to_string(id) + ": expected ids below " + std::to_string(vocabulary) +
                      ", the size of the smaller vocabulary");
  }
  const int64_t longest =
      std::min(a.config().model.max_position_embeddings, b.config().model.max_position_embeddings);
  if (std::ssize(tokens) > longest) {
    throw UserError(
        std::string(options.has_tokens ? "--tokens" : "--text") + ": found " + std::to_string(tokens.size()) +
        " ids, expected at most the smaller model.max_position_embeddings = " + std::to_string(longest));
  }
  const auto activations_a = activations(a, tokens), activations_b = activations(b, tokens);
  std::printf("%-20s %14s\n", "activation", "difference");
  std::string first;
  size_t common = 0;
  for (; common < std::min(activations_a.size(), activations_b.size()); ++common) {
    const auto &in_a = activations_a[common], &in_b = activations_b[common];
    if (in_a.name != in_b.name) break;
    const double difference = relative_difference(in_a.values, in_b.values);
    if (first.empty() && difference > options.tolerance) first = in_a.name;
    std::printf("%-20s %14.3g%s\n", in_a.name.c_str(), difference,
                first == in_a.name ? "  <- first above the tolerance" : "");
  }
  const bool same_layers = common == activations_a.size() && common == activations_b.size();
  const auto next = [&](const std::vector<Activation>& all) {
    return common < all.size() ? all[common].name : "none";
  };
  if (!first.empty()) {
    std::printf("first difference at: %s\n", first.c_str());
  } else if (!same_layers) {
    std::printf("equal so far within relative tolerance %g, but the next activation is %s in a and %s in b\n",
                options.tolerance, next(activations_a).c_str(), next(activations_b).c_str());
  } else {
    std::printf("all activations equal within relative tolerance %g\n", options.tolerance);
  }
  return first.empty() && same_layers;
}

// Whether all activations on the given text are equal; without a text, whether the configurations are.
bool same_models(const DiffOptions& options) {
  const auto device = choose_device(options.device, "--device");
  const auto a = load_model(open_model_folder(options.a), options.dtype, device, MtpModules::kLoad),
             b = load_model(open_model_folder(options.b), options.dtype, device, MtpModules::kLoad);
  const auto config_differences = differences(a->config(), b->config());
  for (const auto& difference : config_differences) std::printf("%s\n", difference.c_str());
  if (!options.has_text && !options.has_tokens) {
    if (config_differences.empty())
      std::printf("configurations are equal; use --text to compare the models layer by layer\n");
    return config_differences.empty();
  }
  return same_activations(options, *a, *b);
}

Option add_dtype(Command* command, Dtype& dtype) {
  return add_choice_option<Dtype>(*command, "--dtype", dtype, "compute type")
      .one_of({name_of(Dtype::kFp32), name_of(Dtype::kFp64), name_of(Dtype::kBf16)})
      .show_default(name_of(dtype));
}

}  // namespace

void add_inspect_commands(Command& hero, int& status) {
  auto logits = std::make_shared<LogitsOptions>();
  auto* logits_command = hero.subcommand("logits");
  logits_command
      ->add_option("dir", logits->dir, "run folder (its latest checkpoint), checkpoint or model folder")
      .required();
  logits_command->add_option("--tokens", logits->tokens, "JSON file: a list of lists of token ids")
      .required();
  logits_command->add_option("--out", logits->out, "safetensors file to write: logits.{n} [S, V]").required();
  logits_command->add_flag("--routing", logits->routing,
                           "also router_logits.{n}.{l}, topk_ids.{n}.{l}, topk_weights.{n}.{l}, l from 1");
  logits_command->add_flag("--gradients", logits->gradients,
                           "also loss, lm_loss, balance_loss and grad.NAME, with all lists as one batch");
  add_dtype(logits_command, logits->dtype);
  add_device_option(*logits_command, logits->device);
  logits_command->callback([logits] { run_logits(*logits); });

  auto diff = std::make_shared<DiffOptions>();
  auto* diff_command = hero.subcommand("diff");
  diff_command->footer(
      "Exit status: 0 if all activations are equal within the tolerance or, without --text and --tokens, if "
      "the configurations are equal; else 1.");
  diff_command->add_option("a", diff->a, "run folder, checkpoint or model folder").required();
  diff_command->add_option("b", diff->b, "model to compare with a").required();
  auto text = diff_command->add_option("--text", diff->text,
                                       "text to run both models on, encoded with the tokenizer of a");
  auto tokens = diff_command->add_option("--tokens", diff->tokens,
                                         "JSON file with token ids instead of a text (first list)");
  text.excludes(tokens);
  diff_command->add_option("--tolerance", diff->tolerance, "tolerance of max |a - b| / max |a|")
      .range(0.0, 1e6)
      .show_default();
  add_dtype(diff_command, diff->dtype);
  add_device_option(*diff_command, diff->device);
  diff_command->callback([diff, text, tokens, &status] {
    diff->has_text = text.given();
    diff->has_tokens = tokens.given();
    status = same_models(*diff) ? 0 : 1;
  });
}

}  // namespace hero
