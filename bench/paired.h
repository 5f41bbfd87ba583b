#pragma once
// Contestants in turn (A B C A B C ...), so that a machine whose speed drifts is fair to all.
#include <chrono>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ops/cuda_library.h"

namespace hero::bench {

struct Contestant {
  std::string name;
  std::function<void()> work;
  std::vector<double> seconds = {};  ///< a call's, from every round
};

/// Each round calls every contestant once uncounted (pages, generated kernels) and `calls` times on `device`.
inline void run_rounds(std::vector<Contestant>& all, int64_t rounds, int64_t calls, c10::Device device) {
  for (int64_t round = 1; round <= rounds; ++round) {
    for (Contestant& contestant : all) {
      contestant.work();
      wait_for(device);
      const auto begin = std::chrono::steady_clock::now();
      for (int64_t i = 0; i < calls; ++i) contestant.work();
      wait_for(device);
      const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
      contestant.seconds.push_back(spent.count() / static_cast<double>(calls));
      std::fprintf(stderr, "round %ld/%ld: %s: %.2f ms\n", round, rounds, contestant.name.c_str(),
                   1e3 * contestant.seconds.back());
    }
  }
}

/// A line of JSON on stdout, which the Python pages read.
inline void print_line(const nlohmann::ordered_json& line) {
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

}  // namespace hero::bench
