// The program with all commands, which the launcher executes, and its exit status.
#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "cli/commands.h"
#include "cli/program.h"
#include "io/cores.h"
#include "io/error.h"
#include "train/version.h"

namespace {

// OpenMP counts cores, but not a container's quota of their time.
void limit_threads() {
  if (std::getenv("OMP_NUM_THREADS")) return;
  const auto cores = static_cast<int>(hero::available_cores());
  if (cores < at::get_num_threads()) at::set_num_threads(cores);
}

// Returns the exit status.
int run(int argc, char** argv) {
  const auto program = hero::declare_program(hero::program_version);
  hero::Command& hero = *program;
  int status = 0;
  hero::add_data_commands(hero);
  hero::add_train_commands(hero, status);
  hero::add_eval_command(hero);
  hero::add_generate_command(hero);
  hero::add_chat_command(hero);
  hero::add_export_command(hero);
  hero::add_inspect_commands(hero, status);
  hero::add_analyze_command(hero);
  hero::add_cost_command(hero);
  hero::add_plan_command(hero);
  hero::add_bench_commands(hero);
  hero::add_study_command(hero, status);
  hero::add_serve_command(hero);
  const int usage = hero.parse(argc, argv);
  return usage == 0 ? status : usage;
}

}  // namespace

int main(int argc, char** argv) {
  int status = 1;
  try {
    limit_threads();
    status = run(argc, argv);
  } catch (const hero::UserError& e) {
    std::fprintf(stderr, "hero: %s\n", e.what());
    status = 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "hero: %s\n", e.what());
  }
  status = hero::exit_status(status);
  // Profilers of CUDA write their results when the process exits.
  if (at::hasCUDA()) return status;
  // Without static destructors: LibTorch's take a quarter of a second to unregister every operator.
  std::_Exit(status);
}
