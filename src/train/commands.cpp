#include "train/commands.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "config/config.h"
#include "config/error.h"
#include "train/trainer.h"

namespace hero {
namespace {

// The report is drawn by Python: this process becomes `python -m hero_moe.report`.
[[noreturn]] void run_report(const std::vector<std::string>& runs, const std::string& out) {
  const char* chosen = std::getenv("HERO_PYTHON");
  const std::string python = chosen && *chosen ? chosen : HERO_PYTHON_DEFAULT;
  const char* path = std::getenv("PYTHONPATH");
  const std::string search =
      std::string(HERO_PYTHON_PACKAGE_DIR) + (path && *path ? ":" + std::string(path) : "");
  setenv("PYTHONPATH", search.c_str(), 1);
  std::vector<std::string> words = {python, "-m", "hero_moe.report"};
  words.insert(words.end(), runs.begin(), runs.end());
  words.insert(words.end(), {"--out", out});
  std::vector<char*> arguments;
  for (auto& w : words) arguments.push_back(w.data());
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  throw RunError(python + ": cannot be started: " + std::strerror(errno) +
                 "; HERO_PYTHON names the Python that draws reports");
}

}  // namespace

void add_train_commands(CLI::App& hero, int& status) {
  auto options = std::make_shared<TrainOptions>();
  auto* train_command = hero.add_subcommand("train", "Train a model, or go on with a run");
  train_command
      ->add_option("--config", options->config_files, "TOML file, then overlays, each over those before it")
      ->check(CLI::ExistingFile);
  train_command->add_option("--data", options->data,
                            "PREFIX of .bin and .idx files, or several as WEIGHT:PREFIX");
  train_command->add_option("--run", options->run, "folder of the run")->required();
  train_command->add_flag("--resume", options->resume,
                          "go on after the run's latest checkpoint, or start if there is none");
  train_command->add_option("--init-from", options->init_from,
                            "run, checkpoint or model folder: its model and weights begin the run; with "
                            "--router.kind=hero a baseline's routers gain a history");
  train_command->allow_extras();
  train_command->footer("Configuration keys, given as --key=value:\n" + field_help());
  train_command->callback([options, train_command, &status] {
    options->flags = train_command->remaining();
    status = train(*options);
  });

  auto runs = std::make_shared<std::vector<std::string>>();
  auto out = std::make_shared<std::string>();
  auto* report = hero.add_subcommand("report", "One self-contained HTML page that compares runs");
  report->add_option("runs", *runs, "run folders; the first baseline is what the others are compared with")
      ->required();
  report->add_option("--out", *out, "HTML file to write")->required();
  report->callback([runs, out] { run_report(*runs, *out); });
}

}  // namespace hero
