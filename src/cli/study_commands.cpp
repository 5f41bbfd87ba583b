#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "data/phases.h"
#include "io/error.h"
#include "io/file_io.h"
#include "io/python.h"
#include "study/description.h"
#include "study/runs.h"
#include "study/study_data.h"

namespace hero {
namespace {

namespace fs = std::filesystem;

// The -valid token files next to the training files of all variants, as hero data tokenize writes them.
std::vector<std::string> default_held_out(const std::vector<std::string>& data,
                                          const std::vector<Variant>& variants) {
  std::vector<std::string> found;
  for (const auto& variant : variants) {
    for (std::string prefix : make_data_plan(variant.config, data).prefixes) {
      if (prefix.ends_with("-train")) prefix.resize(prefix.size() - 6);
      prefix += "-valid";
      if (fs::exists(prefix + ".idx") && std::ranges::count(found, prefix) == 0) found.push_back(prefix);
    }
  }
  return found;
}

void report_duplicates(const std::vector<Variant>& variants) {
  for (const auto& variant : variants) {
    if (!variant.same_as.empty()) {
      std::fprintf(stderr, "%s: identical to %s, because every layer sees the same layers; trained once\n",
                   variant.name.c_str(), variant.same_as.c_str());
    }
  }
}

// Returns the exit status of a failed run; else the page's Python process replaces this one.
int run_study(StudyOptions options, bool report_only) {
  auto variants = read_variants(options.config, options.variants, options.flags);
  prefer_existing_runs(variants, options.out);
  if (options.held_out.empty()) options.held_out = default_held_out(options.data, variants);
  const auto runs = study_runs(options, variants);
  for (const auto& run : runs) check_existing_run(run);
  report_duplicates(variants);
  if (!report_only) {
    for (const auto& run : runs) check_existing_data(options, run);
    if (!std::ranges::all_of(runs, finished)) check_study_data(options, variants);
    make_parent_folder((options.out / "study.json").string());
    if (const int status = train_all(runs, options.jobs)) return status;
  }
  const auto description = describe_study(options, variants, runs);
  write_file((options.out / "study.json").string(), description.dump(1) + "\n");
  exec_python("hero_moe.study", {options.out.string()});
}

}  // namespace

void add_study_command(Command& hero, int& status) {
  auto options = std::make_shared<StudyOptions>();
  auto report_only = std::make_shared<bool>(false);
  auto* command = hero.subcommand("study");
  command->add_option("config", options->config, "base TOML file of all variants").required().existing_file();
  command
      ->add_option("--variants", options->variants,
                   "comma-separated overlays: TOML files, or names (NAME.toml next to CONFIG or built-in)")
      .delimiter(',')
      .required();
  command->add_option("--seeds", options->seeds, "number of seeds, starting at train.seed")
      .range(1, 1000)
      .show_default();
  command->add_option("--data", options->data,
                      "PREFIX of .bin and .idx files, or several as WEIGHT:PREFIX; not with data.phase");
  command->add_option("--held-out", options->held_out,
                      "prefixes of token files for evaluation; default: the -valid files of --data");
  command->add_option("--out", options->out, "output folder; the same command resumes the study").required();
  command->add_option("--jobs", options->jobs, "concurrent runs").range(1, 1024).show_default();
  command->add_option("--threads", options->threads, "threads per run; 0: cores / --jobs")
      .range(0, 4096)
      .show_default();
  command->add_flag("--report-only", *report_only,
                    "do not train; compare the finished runs of the same command");
  command->allow_extras();
  command->footer("Configuration keys are given as --key=value; hero train --help lists them.");
  command->callback([options, report_only, command, &status] {
    options->flags = command->remaining();
    status = run_study(*options, *report_only);
  });
}

}  // namespace hero
