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

/// A first call of so many seconds is the measurement: warming up changes little of it.
constexpr double kLongCall = 10;

/// Seconds per call of `calls` calls on `device`.
inline double time_calls(const std::function<void()>& work, int64_t calls, c10::Device device) {
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < calls; ++i) work();
  synchronize(device);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() /
         static_cast<double>(calls);
}

/// Each round runs every variant once as warm-up, then times `calls` calls on `device`, unless the first was
/// long.
inline void run_rounds(std::vector<Variant>& all, int64_t rounds, int64_t calls, c10::Device device) {
  for (int64_t round = 1; round <= rounds; ++round) {
    for (Variant& variant : all) {
      const double first = time_calls(variant.work, 1, device);
      variant.seconds.push_back(first < kLongCall ? time_calls(variant.work, calls, device) : first);
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
