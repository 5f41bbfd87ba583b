// bf16 GEMM kernels of every instruction set that this CPU supports, single-threaded on packed operands, with
// throughput in FLOP/s: block/SHAPE/SET.
#include "ops/cpu/gemm_kernels.h"

#include <benchmark/benchmark.h>

#include <algorithm>

#include "ops/bench_ops.h"
#include "ops/cases.h"
#include "ops/cpu/gemm.h"

namespace hero::bench {
namespace {

using cpu::bf16;

// c [m, n] = a [m, k] * packed b, 64 rows by one panel at a time, as in the operators.
void multiply(cpu::GemmKernel kernel, int64_t m, int64_t n, int64_t k, const bf16* a, const bf16* packed,
              float* c) {
  for (int64_t r = 0; r < m; r += cpu::kBlockRows) {
    for (int64_t p = 0; p < cpu::panels(n); ++p) {
      kernel(std::min(cpu::kBlockRows, m - r), cpu::panel_width(n, p), k, a + r * k, k,
             packed + p * cpu::kPanelWidth * k, c + r * n + p * cpu::kPanelWidth, n, false);
    }
  }
}

void add_gemm_kernel(const cpu::NamedGemmKernel& kernel, int64_t m, int64_t n, int64_t k) {
  const auto a = random({m, k}), b = random({k, n}), packed = at::empty_like(b), c = wide({m, n});
  cpu::pack(b.data_ptr<bf16>(), k, n, n, /*transposed=*/false, packed.data_ptr<bf16>());
  const std::string name =
      "block/T" + std::to_string(m) + "_I" + std::to_string(k) + "_O" + std::to_string(n) + "/" + kernel.name;
  benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
    for (auto _ : state)
      multiply(kernel.multiply, m, n, k, a.data_ptr<bf16>(), packed.data_ptr<bf16>(), c.data_ptr<float>());
    state.counters["FLOP/s"] = benchmark::Counter(2.0 * static_cast<double>(m * n * k),
                                                  benchmark::Counter::kIsIterationInvariantRate);
  })->Unit(benchmark::kMillisecond);
}

}  // namespace

void add_gemm_kernels() {
  if (!device().is_cpu()) return;
  for (const auto& c : test::kLinearCases) {
    if (!c.timed) continue;
    for (const auto& kernel : cpu::gemm_kernels()) add_gemm_kernel(kernel, c.tokens, c.out, c.in);
  }
}

}  // namespace hero::bench
