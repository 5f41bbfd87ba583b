// bench_ops [--benchmark_filter=REGEX]: milliseconds of wall time. Two names that differ in /fused and /plain
// alone are one case; compare numbers of one run only.
#include "ops/bench_ops.h"

#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include <cstdio>

namespace hero::bench {

void add(const std::string& name, const std::function<void(bool plain)>& step) {
  for (const bool plain : {false, true}) {
    benchmark::RegisterBenchmark((name + (plain ? "/plain" : "/fused")).c_str(),
                                 [step, plain](benchmark::State& state) {
                                   const at::NoGradGuard no_grad;
                                   step(plain);  // kernels are generated when they are first called
                                   for (auto _ : state) step(plain);
                                 })
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
  }
}

}  // namespace hero::bench

int main(int argc, char** argv) try {
  benchmark::AddCustomContext("threads", std::to_string(at::get_num_threads()));
  at::manual_seed(1);
  hero::bench::add_dense();
  hero::bench::add_routed();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "bench_ops: %s\n", e.what());
  return 1;
}
