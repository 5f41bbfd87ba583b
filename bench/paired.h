#pragma once
// Interleaved measurements (A B C A B C ...), so that drifting machine speed affects all variants equally.
#include <chrono>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ops/cuda_library.h"

namespace hero::bench {

struct Variant {
  std::string name;
  std::function<void()> work;
  std::vector<double> seconds = {};  ///< per call, one element per round
};

/// Each round runs every variant once as warm-up, then times `calls` calls on `device`.
inline void run_rounds(std::vector<Variant>& all, int64_t rounds, int64_t calls, c10::Device device) {
  for (int64_t round = 1; round <= rounds; ++round) {
    for (Variant& variant : all) {
      variant.work();
      synchronize(device);
      const auto begin = std::chrono::steady_clock::now();
      for (int64_t i = 0; i < calls; ++i) variant.work();
      synchronize(device);
      const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
      variant.seconds.push_back(spent.count() / static_cast<double>(calls));
      std::fprintf(stderr, "round %ld/%ld: %s: %.2f ms\n", round, rounds, variant.name.c_str(),
                   1e3 * variant.seconds.back());
    }
  }
}

/// Prints a line of JSON to stdout, for the Python benchmark scripts.
inline void print_line(const nlohmann::ordered_json& line) {
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

}  // namespace hero::bench
