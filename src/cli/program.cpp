#include "cli/program.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace hero {
namespace {

struct CommandName {
  const char* name;
  const char* description;
};

// In the order of --help.
constexpr CommandName kCommands[] = {
    {"data", "Train tokenizers, tokenize text, inspect token files, count what runs read"},
    {"train", "Train a model, resume a run, or branch from one"},
    {"report", "Write a self-contained HTML page that compares runs"},
    {"eval", "Evaluate loss and perplexity of a model on token files"},
    {"generate", "Generate text from a prompt"},
    {"chat", "Talk to a model in the terminal; or one message per line of stdin"},
    {"export", "Export a model to Hugging Face format"},
    {"logits", "Write logits, routing and gradients for given tokens"},
    {"diff", "Show where two models differ: configurations, then layer by layer"},
    {"analyze", "Analyze how a model's routers use their history; write results, figures and an HTML page"},
    {"cost", "Estimate parameters, FLOPs, memory and traffic of a configuration, with and without history"},
    {"plan", "Rank parallel layouts on a cluster by predicted step time, with memory and traffic"},
    {"bench", "Measure the cost of training on this machine"},
    {"study", "Train model variants with several seeds and compare them"},
    {"serve", "Serve a model with OpenAI-compatible APIs for completions and chat"}};

}  // namespace

std::unique_ptr<Command> declare_program(std::function<std::string()> libraries) {
  auto hero = std::make_unique<Command>(
      "Train Mixture-of-Experts language models with history-aware routers.",
      [libraries = std::move(libraries)] { return "hero " HERO_VERSION ", " + libraries(); });
  hero->require_subcommand();
  hero->footer(
      "Exit status: 0; 2 for an invalid command line, configuration or input file; 1 for a runtime error; "
      "128 + n after a checkpoint saved on signal n.");
  for (const auto& [name, description] : kCommands) hero->add_subcommand(name, description);
  return hero;
}

bool is_command(std::string_view word) {
  return std::ranges::any_of(kCommands, [&](const CommandName& command) { return command.name == word; });
}

int exit_status(int status) {
  const bool failed_before = std::ferror(stdout) != 0;
  const int reason = std::fflush(stdout) == 0 ? 0 : errno;
  if (!failed_before && reason == 0) return status;
  std::fprintf(stderr, "hero: cannot write standard output%s%s\n", reason ? ": " : "",
               reason ? std::strerror(reason) : "");
  return status == 0 ? 1 : status;
}

}  // namespace hero
