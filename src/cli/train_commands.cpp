
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/config_option.h"
#include "config/overrides.h"
#include "io/python.h"
#include "train/train.h"

namespace hero {
namespace {

// The report is drawn by Python.
[[noreturn]] void run_report(std::vector<std::string> arguments, const std::string& out) {
  arguments.insert(arguments.end(), {"--out", out});
  exec_python("hero_moe.report", arguments);
}

}  // namespace

void add_train_commands(Command& hero, int& status) {
  auto options = std::make_shared<TrainOptions>();
  auto* train_command = hero.subcommand("train");
  auto files = std::make_shared<std::vector<std::string>>();
  add_config_option(*train_command, *files);
  train_command->add_option("--data", options->data,
                            "PREFIX of .bin and .idx files, or several as WEIGHT:PREFIX");
  train_command->add_option("--run", options->run, "run folder").required();
  train_command->add_flag("--resume", options->resume,
                          "resume from the run's latest checkpoint, or start if there is none");
  train_command->add_flag("--data-changed", options->data_changed,
                          "with --resume or --branch: continue although the token files have changed");
  train_command->add_option("--init-from", options->init_from,
                            "initialize model and weights from a run, checkpoint or model folder; with "
                            "--router.kind=hero, a baseline's routers gain a history");
  train_command->add_option(
      "--branch", options->branch,
      "start a new run from a checkpoint of another run, with its weights, optimizer "
      "state, data position and configuration: RUN (its newest intact one), RUN@STEP, or "
      "a checkpoint folder");
  train_command->allow_extras();
  train_command->footer("Configuration keys, given as --key=value or --key value, with type and default:\n" +
                        field_help());
  train_command->callback([options, files, train_command, &status] {
    options->overrides = ConfigOverrides(*files, train_command->remaining());
    status = train(*options);
  });

  auto runs = std::make_shared<std::vector<std::string>>();
  auto out = std::make_shared<std::string>();
  auto* report = hero.subcommand("report");
  report->add_option("runs", *runs, "run folders; the first baseline is the reference").required();
  report->add_option("--out", *out, "HTML file to write").required();
  report->callback([runs, out] { run_report(*runs, *out); });
}

}  // namespace hero
