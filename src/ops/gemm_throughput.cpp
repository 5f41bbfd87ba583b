#include "ops/gemm_throughput.h"

#include <ATen/ATen.h>
#include <ATen/Version.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cctype>
#include <chrono>

#include "ops/cpu/gemm.h"
#include "ops/cpu/gemm_kernels.h"
#include "ops/cuda_library.h"
#include "ops/ops.h"

namespace hero {
namespace {

// Throughput of `multiply`, which multiplies two [n, n] matrices on the device.
template <typename F>
double best_flops_per_second(int64_t n, at::Device device, const F& multiply) {
  const double work = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
  if (!device.is_cpu()) multiply();  // the first call initializes the library
  synchronize(device);
  double best = 0, spent = 0;
  for (int i = 0; i < 8 && spent < 0.05; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    multiply();
    synchronize(device);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    best = std::max(best, work / seconds);
    spent += seconds;
  }
  return best;
}

}  // namespace

double gemm_flops_per_second(at::ScalarType dtype, at::Device device) {
  const at::NoGradGuard no_grad;
  const auto square = [&](int64_t n) { return at::ones({n, n}, at::TensorOptions(device).dtype(dtype)); };
  const auto a = square(device.is_cpu() ? 1024 : 8192);
  const double ours = best_flops_per_second(a.size(0), device, [&] { return ops::linear(a, a); });
  if (device.is_cpu()) {
    // Without native instructions for the dtype, PyTorch may fall back to scalar code: half a minute for `a`.
    const auto small = square(256);
    if (best_flops_per_second(small.size(0), device, [&] { return at::mm(small, small); }) < ours / 10)
      return ours;
  }
  return std::max(ours, best_flops_per_second(a.size(0), device, [&] { return at::mm(a, a); }));
}

std::vector<GemmKernelThroughput> gemm_kernel_throughputs() {
  using cpu::bf16, cpu::kBlockRows, cpu::kPanelWidth;
  constexpr int64_t n = 1024;
  const auto a = at::ones({n, n}, at::kBFloat16), packed = at::empty_like(a),
             c = at::empty({n, n}, at::kFloat);
  const auto* rows = a.const_data_ptr<bf16>();
  auto* panels = packed.data_ptr<bf16>();
  auto* out = c.data_ptr<float>();
  cpu::pack(rows, n, n, n, /*transposed=*/false, panels);
  std::vector<GemmKernelThroughput> all;
  for (const auto& kernel : cpu::gemm_kernels()) {
    const auto multiply = [&] {
      cpu::parallel_tasks(n / kBlockRows, [&](int64_t i) {
        const int64_t r = i * kBlockRows * n;
        for (int64_t p = 0; p < n; p += kPanelWidth)
          kernel.multiply(kBlockRows, kPanelWidth, n, rows + r, n, panels + p * n, out + r + p, n, false);
      });
    };
    all.push_back({kernel.name, best_flops_per_second(n, at::kCPU, multiply),
                   cpu::supports_gemm(16) && &kernel == &cpu::selected_gemm_kernel()});
  }
  return all;
}

std::string gemm_instructions(at::ScalarType dtype) {
  if (dtype == at::kBFloat16 && cpu::supports_gemm(16)) return cpu::selected_gemm_kernel().name;
  std::string name = at::get_cpu_capability();
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

}  // namespace hero
