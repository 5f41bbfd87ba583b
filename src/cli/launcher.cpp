// The program `hero` as users start it: answers --help, --version and unknown commands itself, because
// loading LibTorch takes a quarter of a second, and runs a command by executing program/hero, which has them
// all.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>

#include "cli/program.h"
#include "train/version.h"

namespace {

namespace fs = std::filesystem;

// Returns the exit status, unless it becomes the program.
int run(int argc, char** argv) {
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  if (std::none_of(argv + 1, argv + argc, hero::is_command))
    return hero::declare_program([&] { return hero::library_versions(folder / "libhero.so"); })
        ->parse(argc, argv);
  const fs::path program = folder / "program" / "hero";
  ::execv(program.c_str(), argv);
  std::fprintf(stderr, "hero: cannot run %s: %s\n", program.c_str(), std::strerror(errno));
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "hero: %s\n", e.what());
    return 1;
  }
}
