// The program `hero`: its table of subcommands, and what its exit status says.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "cli/commands.h"
#include "io/error.h"
#include "train/version.h"

namespace {

// One line, like every other refusal. The parser asks for a subcommand before it looks at what it does not
// know.
void print_mistake(const CLI::App& hero, const CLI::ParseError& mistake) {
  const CLI::App* command = &hero;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  const bool unknown = dynamic_cast<const CLI::RequiredError*>(&mistake) &&
                       !command->get_subcommands({}).empty() && !command->remaining().empty();
  const std::string what = unknown ? command->remaining().front() + ": unknown subcommand" : mistake.what();
  std::string path;
  for (const CLI::App* c = command; c != &hero; c = c->get_parent()) path = " " + c->get_name() + path;
  std::fprintf(stderr, "hero: %s; see hero%s --help\n", what.c_str(), path.c_str());
}

// `--section.key value` as `--section.key=value`: CLI11 does not know the keys of a configuration.
std::vector<std::string> with_joined_keys(int argc, char** argv) {
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool is_key = word.starts_with("--") && word.find('.') != std::string::npos &&
                        word.find_first_of("= ") == std::string::npos;
    const bool has_value = is_key && i + 1 < argc && !std::string_view(argv[i + 1]).starts_with("--");
    words.push_back(has_value ? word + "=" + argv[++i] : word);
  }
  return {words.rbegin(), words.rend()};  // CLI11 takes them from the back
}

// Returns the exit status.
int run(int argc, char** argv) {
  CLI::App hero("Pre-train Mixture-of-Experts language models whose routers know their own history.");
  hero.require_subcommand(1);
  hero.set_version_flag(
      "--version", [] { return "hero " HERO_VERSION ", " + hero::program_version(); },
      "Version of the program and of what it is linked with");
  hero.footer(
      "Exit status: 0; 2 for a wrong command line, configuration or input file; 1 for what failed on the "
      "way;\n"
      "128 + n after a save on signal n.");
  int status = 0;
  hero::add_data_commands(hero);
  hero::add_train_commands(hero, status);
  hero::add_eval_command(hero);
  hero::add_generate_command(hero);
  hero::add_export_command(hero);
  hero::add_inspect_commands(hero, status);
  hero::add_analyze_command(hero);
  hero::add_cost_command(hero);
  hero::add_plan_command(hero);
  hero::add_bench_commands(hero);
  hero::add_study_command(hero, status);
  hero::add_serve_command(hero);
  try {
    hero.parse(with_joined_keys(argc, argv));
    return status;
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return hero.exit(e);
    print_mistake(hero, e);
    return 2;
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const hero::UserError& e) {
    std::fprintf(stderr, "hero: %s\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "hero: %s\n", e.what());
    return 1;
  }
}
