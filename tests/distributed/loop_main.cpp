// hero_loop TIMEOUT STEPS: loop_over_collectives as a program for launchers. Prints every tenth step.
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>

#include "distributed/loop.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    hero::loop_over_collectives(std::stod(argv[1]), std::stol(argv[2]), [](int64_t step) {
      if (step % 10 == 0) {
        std::printf("step %ld\n", static_cast<long>(step));
        std::fflush(stdout);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    });
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "hero: %s\n", e.what());
    return 1;
  }
}
