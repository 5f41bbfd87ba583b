#include "checkpoint/checkpoint.h"
#include "cli/chat_template_option.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/device_option.h"
#include "cli/sampling_options.h"
#include "cli/tokenizer_option.h"
#include "hf/load.h"
#include "inference/chat_session.h"
#include "io/terminal_lines.h"
#include "io/utf8.h"
#include "ops/cuda_library.h"

namespace hero {
namespace {

struct ChatOptions {
  std::string dir, system, tokenizer, chat_template;
  DeviceChoice device = DeviceChoice::kAuto;
  SamplingParams sampling{.max_tokens = 512};
};

void check_text(const std::string& name, const std::string& text) {
  if (const size_t bad = find_invalid_utf8(text); bad != std::string::npos)
    throw UserError(name + ": byte " + std::to_string(bad) + ": invalid UTF-8, expected UTF-8 text");
}

// An answer, which a signal interrupts.
void print_answer(ChatSession& session, const std::string& message) {
  bool begun = false;
  const auto print = [&](std::string_view text) {
    if (!begun) {  // templates such as `plain` leave a space to the answer
      const size_t first = text.find_first_not_of(" \n");
      text.remove_prefix(std::min(first, text.size()));
      begun = !text.empty();
    }
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    return !take_interrupt();
  };
  const auto end = session.answer(message, print);
  std::fputs("\n", stdout);
  std::fflush(stdout);
  if (end == ChatSession::End::kPositions) {
    std::fprintf(stderr, "the answer reached the model's maximum length of %ld tokens; /reset starts again\n",
                 static_cast<long>(session.positions()));
  }
}

void run_chat(const ChatOptions& options) {
  check_text("--system", options.system);
  const auto device = choose_device(options.device, "--device");
  const auto folder = open_model_folder(options.dir);
  const auto config = load_model_config(folder);
  const Tokenizer tokenizer = open_tokenizer(options.tokenizer, folder, config.model);
  const auto chat =
      open_chat_template(options.chat_template, options.tokenizer, folder, tokenizer, config.model);
  const auto model = load_model(folder, /*dtype=*/std::nullopt, device);
  ChatSession session(*model, tokenizer, *chat, find_end_of_turn(*chat, tokenizer, folder), options.system,
                      options.sampling);
  TerminalLines lines("> ");
  if (lines.interactive()) {
    std::fputs("/reset starts again, /exit or Ctrl-D ends, Ctrl-C stops an answer\n", stderr);
    catch_interrupts();
  }
  for (int64_t number = 1; const auto line = lines.next(); ++number) {
    if (line->find_first_not_of(" \t\r") == line->npos) continue;
    if (*line == "/exit") return;
    if (*line == "/reset") {
      session.reset();
      continue;
    }
    try {
      check_text("line " + std::to_string(number), *line);
      print_answer(session, *line);
    } catch (const UserError& error) {
      if (!lines.interactive()) throw;
      std::fprintf(stderr, "%s\n", error.what());
    }
  }
}

}  // namespace

void add_chat_command(Command& hero) {
  auto options = std::make_shared<ChatOptions>();
  auto* command = hero.subcommand("chat");
  command->add_option("dir", options->dir, "run folder (its latest checkpoint), checkpoint or model folder")
      .required();
  command->add_option("--system", options->system, "system message at the beginning of the conversation");
  add_sampling_options(*command, options->sampling);
  add_chat_template_option(*command, options->chat_template);
  add_tokenizer_option(*command, options->tokenizer);
  add_device_option(*command, options->device);
  command->callback([options] { run_chat(*options); });
}

}  // namespace hero
