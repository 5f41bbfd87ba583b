// bench_ops [--device=cpu|cuda] [--benchmark_filter=REGEX]: milliseconds of wall time, on a GPU with its
// launch. Two names that differ in /fused and /plain alone are one case; compare numbers of one run only.
#include "ops/bench_ops.h"

#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "ops/cuda_library.h"

namespace hero::bench {

void add(const std::string& name, const std::function<void(bool plain)>& step) {
  for (const bool plain : {false, true}) {
    benchmark::RegisterBenchmark((name + (plain ? "/plain" : "/fused")).c_str(),
                                 [step, plain](benchmark::State& state) {
                                   const at::NoGradGuard no_grad;
                                   step(plain);  // kernels are generated when they are first called
                                   wait_for(device());
                                   for (auto _ : state) {
                                     step(plain);
                                     wait_for(device());
                                   }
                                 })
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
  }
}

}  // namespace hero::bench

int main(int argc, char** argv) try {
  using namespace hero;
  constexpr std::string_view option = "--device=";
  std::vector<char*> words(argv, argv + argc);
  for (const std::string_view word : std::vector<char*>(words))
    if (word.starts_with(option))
      bench::device() = choose_device(std::string(word.substr(option.size())), "--device");
  std::erase_if(words, [&](std::string_view word) { return word.starts_with(option); });
  argc = static_cast<int>(words.size());
  benchmark::AddCustomContext("device", bench::device().str());
  benchmark::AddCustomContext("threads", std::to_string(at::get_num_threads()));
  at::manual_seed(1);
  bench::add_dense();
  bench::add_routed();
  bench::add_blocks();
  benchmark::Initialize(&argc, words.data());
  if (benchmark::ReportUnrecognizedArguments(argc, words.data())) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "bench_ops: %s\n", e.what());
  return 1;
}
