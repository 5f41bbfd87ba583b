
#include "checkpoint/checkpoint.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/device_option.h"
#include "cli/sampling_options.h"
#include "cli/tokenizer_option.h"
#include "hf/load.h"
#include "inference/end_of_turn.h"
#include "inference/sampler.h"
#include "inference/server/text_stream.h"
#include "io/error.h"
#include "io/utf8.h"
#include "ops/cuda_library.h"

namespace hero {
namespace {

struct GenerateOptions {
  std::string dir, prompt, tokenizer;
  DeviceChoice device = DeviceChoice::kAuto;
  SamplingParams sampling;
  bool no_cache = false;
};

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void run_generate(GenerateOptions options) {
  if (const size_t bad = find_invalid_utf8(options.prompt); bad != std::string::npos) {
    throw UserError("--prompt: byte " + std::to_string(bad) + ": invalid UTF-8, expected UTF-8 text");
  }
  const auto device = choose_device(options.device, "--device");
  const auto folder = open_model_folder(options.dir);
  const auto model = load_model(folder, /*dtype=*/std::nullopt, device);
  const Tokenizer tokenizer = open_tokenizer(options.tokenizer, folder, model->config().model);
  options.sampling.eos = end_tokens(tokenizer, folder);
  options.sampling.cache = !options.no_cache;
  std::vector<int64_t> prompt;
  for (const int32_t id : tokenizer.encode(options.prompt)) prompt.push_back(id);
  if (prompt.empty()) {
    if (tokenizer.eos_id() < 0)
      throw UserError(
          "--prompt: found no tokens, expected some: the tokenizer has no EOS token to begin with");
    prompt.push_back(tokenizer.eos_id());
  }
  const int64_t longest = model->config().model.max_position_embeddings;
  if (static_cast<int64_t>(prompt.size()) >= longest) {
    throw UserError(
        "--prompt: " + std::to_string(prompt.size()) +
        " tokens, expected fewer than model.max_position_embeddings = " + std::to_string(longest));
  }
  std::fputs(options.prompt.c_str(), stdout);
  Utf8StreamDecoder text;  // a character can span several tokens
  const auto ids = generate(*model, prompt, options.sampling, [&](int64_t id) {
    if (id < tokenizer.vocab_size()) print(text.add(tokenizer.bytes(static_cast<int32_t>(id))));
  });
  print(text.flush() + "\n");
  const auto generated = std::ssize(ids);
  if (generated < options.sampling.max_tokens && std::ssize(prompt) + generated >= longest) {
    std::fflush(stdout);
    std::fprintf(
        stderr, "stopped after %td of %ld tokens: the sequence reached model.max_position_embeddings = %ld\n",
        generated, options.sampling.max_tokens, longest);
  }
}

}  // namespace

void add_generate_command(Command& hero) {
  auto options = std::make_shared<GenerateOptions>();
  auto* command = hero.subcommand("generate");
  command->add_option("dir", options->dir, "run folder (its latest checkpoint), checkpoint or model folder")
      .required();
  command->add_option("--prompt", options->prompt, "prompt text; empty: start of a document").required();
  add_sampling_options(*command, options->sampling);
  add_tokenizer_option(*command, options->tokenizer);
  command->add_flag("--no-cache", options->no_cache,
                    "disable the KV cache; recompute all positions for every token");
  add_device_option(*command, options->device);
  command->callback([options] { run_generate(*options); });
}

}  // namespace hero
