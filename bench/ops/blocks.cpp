// The blocks of bf16 products alone, of every instruction set that this processor has, on one core and over
// packed operands, in products per second: block/SHAPE/SET.
#include <benchmark/benchmark.h>

#include <algorithm>

#include "ops/bench_ops.h"
#include "ops/cases.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/gemm_block.h"

namespace hero::bench {
namespace {

using cpu::bf16;

// c [m, n] = a [m, k] b for b in panels, 64 rows by a panel at a time as the operators do it.
void multiply(cpu::BlockGemm block, int64_t m, int64_t n, int64_t k, const bf16* a, const bf16* packed,
              float* c) {
  for (int64_t r = 0; r < m; r += cpu::kRows) {
    for (int64_t p = 0; p < cpu::panels(n); ++p) {
      block(std::min(cpu::kRows, m - r), cpu::panel_width(n, p), k, a + r * k, k,
            packed + p * cpu::kPanel * k, c + r * n + p * cpu::kPanel, n, false);
    }
  }
}

void add_block(const cpu::NamedBlockGemm& block, int64_t m, int64_t n, int64_t k) {
  const auto a = random({m, k}), b = random({k, n}), packed = at::empty_like(b), c = wide({m, n});
  cpu::pack(b.data_ptr<bf16>(), k, n, n, /*transposed=*/false, packed.data_ptr<bf16>());
  const std::string name =
      "block/T" + std::to_string(m) + "_I" + std::to_string(k) + "_O" + std::to_string(n) + "/" + block.name;
  benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
    for (auto _ : state)
      multiply(block.multiply, m, n, k, a.data_ptr<bf16>(), packed.data_ptr<bf16>(), c.data_ptr<float>());
    state.counters["FLOP/s"] = benchmark::Counter(2.0 * static_cast<double>(m * n * k),
                                                  benchmark::Counter::kIsIterationInvariantRate);
  })->Unit(benchmark::kMillisecond);
}

}  // namespace

void add_blocks() {
  if (!device().is_cpu()) return;
  for (const auto& c : test::kLinearCases) {
    if (!c.timed) continue;
    for (const auto& block : cpu::block_gemms()) add_block(block, c.tokens, c.out, c.in);
  }
}

}  // namespace hero::bench
