// The program `hero` as users start it: answers --help, --version and unknown commands itself, because
// loading LibTorch takes a quarter of a second, and runs a command by executing program/hero, which has them
// all.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>

#include "cli/program.h"
#include "train/version.h"

namespace {

namespace fs = std::filesystem;

// OpenMP threads that wait for others spin for milliseconds by default. When other processes use the cores,
// the thread they wait for is often not running: a training step took up to 15 times longer. libgomp reads
// the limit when it is loaded, so only the launcher can set it. As in python/hero_moe/openmp.py.
void limit_spinning() {
  if (!std::getenv("OMP_WAIT_POLICY")) ::setenv("GOMP_SPINCOUNT", "8000", /*overwrite=*/0);
}

// Returns the exit status, unless it becomes the program.
int run(int argc, char** argv) {
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  if (std::none_of(argv + 1, argv + argc, hero::is_command))
    return hero::declare_program([&] { return hero::library_versions(folder / "libhero.so"); })
        ->parse(argc, argv);
  limit_spinning();
  const fs::path program = folder / "program" / "hero";
  ::execv(program.c_str(), argv);
  std::fprintf(stderr, "hero: cannot run %s: %s\n", program.c_str(), std::strerror(errno));
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return hero::exit_status(run(argc, argv));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "hero: %s\n", e.what());
    return 1;
  }
}
