// bench_ops [--device=cpu|cuda] [--benchmark_filter=REGEX]: wall time in milliseconds, including kernel
// launches on a GPU. Names that differ only in /fused and /plain are the same case; compare only results of
// one run.
#include "ops/bench_ops.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <benchmark/benchmark.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "ops/cuda_library.h"

namespace hero::bench {

void add(const std::string& name, const std::function<void(bool reference)>& step) {
  for (const bool reference : {false, true}) {
    benchmark::RegisterBenchmark((name + (reference ? "/plain" : "/fused")).c_str(),
                                 [step, reference](benchmark::State& state) {
                                   const at::NoGradGuard no_grad;
                                   step(reference);  // warm-up
                                   synchronize(device());
                                   for (auto _ : state) {
                                     step(reference);
                                     synchronize(device());
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
    if (word.starts_with(option)) {
      const std::string wanted(word.substr(option.size()));
      bench::device() = choose_device(parse_choice<DeviceChoice>("--device", wanted), "--device");
    }
  std::erase_if(words, [&](std::string_view word) { return word.starts_with(option); });
  argc = static_cast<int>(words.size());
  benchmark::AddCustomContext("device", bench::device().str());
  benchmark::AddCustomContext("threads", std::to_string(at::get_num_threads()));
  at::manual_seed(1);
  bench::add_dense();
  bench::add_routed();
  bench::add_gemm_kernels();
  benchmark::Initialize(&argc, words.data());
  if (benchmark::ReportUnrecognizedArguments(argc, words.data())) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "bench_ops: %s\n", e.what());
  return 1;
}
