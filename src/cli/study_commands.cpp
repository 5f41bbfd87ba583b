#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "data/indexed_dataset.h"
#include "data/sampler.h"
#include "io/error.h"
#include "io/file_io.h"
#include "io/python.h"
#include "study/description.h"
#include "study/runs.h"

namespace hero {
namespace {

namespace fs = std::filesystem;

// The held-out parts that hero data tokenize left beside the training parts.
std::vector<std::string> held_out_beside(const std::vector<std::string>& data) {
  std::vector<std::string> found;
  for (const auto& source : parse_sources(data)) {
    const auto prefix = resolve_prefix(source.prefix, "valid");
    if (prefix.ends_with("-valid") && fs::exists(prefix + ".idx")) found.push_back(prefix);
  }
  return found;
}

void say_what_coincides(const std::vector<Variant>& variants) {
  for (const auto& variant : variants) {
    if (!variant.same_as.empty()) {
      std::fprintf(stderr, "%s: every layer sees what it sees in %s; they are one model, trained once\n",
                   variant.name.c_str(), variant.same_as.c_str());
    }
  }
}

// Returns the exit status, unless the page's Python takes the process over.
int run_study(StudyOptions options, bool report_only) {
  const auto variants = read_variants(options.config, options.variants, options.flags);
  if (options.held_out.empty()) options.held_out = held_out_beside(options.data);
  const auto runs = study_runs(options, variants);
  for (const auto& run : runs) check_present(run);
  say_what_coincides(variants);
  if (!report_only) {
    make_parent_folder((options.out / "study.json").string());
    if (const int status = train_all(runs, options.jobs)) return status;
  }
  const auto description = describe_study(options, variants, runs);
  write_file((options.out / "study.json").string(), description.dump(1) + "\n");
  become_python("hero_moe.study", {options.out.string()});
}

}  // namespace

void add_study_command(CLI::App& hero, int& status) {
  auto options = std::make_shared<StudyOptions>();
  auto report_only = std::make_shared<bool>(false);
  auto* command = hero.add_subcommand("study", "Train variants under several seeds and compare them");
  command->add_option("config", options->config, "TOML file that all variants share")
      ->required()
      ->check(CLI::ExistingFile);
  command
      ->add_option(
          "--variants", options->variants,
          "overlays, comma-separated: names (NAME.toml beside CONFIG, else the program's own) or files")
      ->delimiter(',')
      ->required();
  command->add_option("--seeds", options->seeds, "seeds: train.seed and those after it")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--data", options->data, "PREFIX of .bin and .idx files, or several as WEIGHT:PREFIX")
      ->required();
  command->add_option(
      "--held-out", options->held_out,
      "prefixes that every trained model is evaluated on; default: the -valid parts of --data");
  command->add_option("--out", options->out, "folder of the study; the same command resumes it")->required();
  command->add_option("--jobs", options->jobs, "runs side by side")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--threads", options->threads, "threads of each run; 0: the cores divided by --jobs")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command->add_flag("--report-only", *report_only, "train nothing; compare the runs that are finished");
  command->allow_extras();
  command->footer("Configuration keys are given as --key=value; hero train --help lists them.");
  command->callback([options, report_only, command, &status] {
    options->flags = command->remaining();
    status = run_study(*options, *report_only);
  });
}

}  // namespace hero
