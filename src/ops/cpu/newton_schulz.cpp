// Newton-Schulz iterations on packed bf16 GEMMs, one task per matrix, so results do not depend on the number
// of threads. G = X X^T and b G + c G^2 are symmetric: only panels on and below the diagonal are computed.
// Rounds where the reference implementation does.
#include "ops/newton_schulz.h"

#include <ATen/core/Tensor.h>

#include <cmath>

#include "ops/cpu/empty.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/simd.h"
#include "ops/reference.h"

namespace hero::cpu {
namespace {

using ops::NewtonSchulz;

// Larger matrices are multiplied by the library, with all threads.
constexpr int64_t kLargestMatrix = int64_t{1} << 20;  // elements

// Rounds x [n] and returns its sum of squares after rounding.
HERO_SIMD float round_row(const float* x, int64_t n, bf16* out) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    store(out[i], x[i]);
    const float value = load(out[i]);
    sum += value * value;
  }
  return sum;
}

HERO_SIMD void scale_row(bf16* x, int64_t n, float divisor) {
  for (int64_t i = 0; i < n; ++i) store(x[i], load(x[i]) / divisor);
}

// out = alpha * sums + beta * x
HERO_SIMD void combine_row(const float* sums, float alpha, const bf16* x, float beta, int64_t n, bf16* out) {
  for (int64_t i = 0; i < n; ++i) store(out[i], __builtin_fmaf(beta, load(x[i]), alpha * sums[i]));
}

// One matrix X [m, n], m <= n, both multiples of 16.
class Iteration {
 public:
  Iteration(int64_t m, int64_t n)
      : m_(m),
        n_(n),
        packed_(scratch<bf16>(m * n)),
        gram_(scratch<bf16>(m * m)),
        polynomial_(scratch<bf16>(m * m)),
        sums_(scratch<float>(m * kPanelWidth)) {}

  void run(bf16* x) {
    for (int64_t p = 0; p < panels(m_); ++p)
      pack_panel(x, n_, n_, m_, n_, /*transposed=*/true, p, packed_.get());
    symmetric_product(x, n_, gram_.get(), [&](const float* sums, int64_t, int64_t width, bf16* out) {
      round_row(sums, width, out);
    });
    for (int64_t p = 0; p < panels(m_); ++p) pack_panel(gram_.get(), m_, m_, m_, m_, false, p, packed_.get());
    symmetric_product(
        gram_.get(), m_, polynomial_.get(), [&](const float* sums, int64_t offset, int64_t width, bf16* out) {
          combine_row(sums, NewtonSchulz::kC, gram_.get() + offset, NewtonSchulz::kB, width, out);
        });
    for (int64_t p = 0; p < panels(n_); ++p) pack_panel(x, m_, m_, n_, n_, false, p, packed_.get());
    for (int64_t p = 0; p < panels(n_); ++p) {
      const int64_t width = panel_width(n_, p), first = p * kPanelWidth;
      gemm_panel(m_, width, m_, polynomial_.get(), m_, packed_.get() + first * m_, 0, sums_.get(), width,
                 false);
      for (int64_t r = 0; r < m_; ++r) {
        bf16* row = x + r * n_ + first;
        combine_row(sums_.get() + r * width, 1, row, NewtonSchulz::kA, width, row);
      }
    }
  }

 private:
  // out [m, m] from the symmetric product of a [m, k] and the packed panels; round(sums, offset in out,
  // width, row of out) stores part of a row.
  template <typename Round>
  void symmetric_product(const bf16* a, int64_t k, bf16* out, Round&& round) {
    for (int64_t p = 0; p < panels(m_); ++p) {
      const int64_t width = panel_width(m_, p), first = p * kPanelWidth, below = first + width;
      gemm_panel(m_ - first, width, k, a + first * k, k, packed_.get() + first * k, 0, sums_.get(), width,
                 false);
      for (int64_t r = first; r < m_; ++r) {
        const int64_t offset = r * m_ + first;
        round(sums_.get() + (r - first) * width, offset, width, out + offset);
      }
      if (below < m_)
        transpose(out + below * m_ + first, m_ - below, width, m_, m_ - below, out + first * m_ + below, m_);
    }
  }

  int64_t m_, n_;
  Scratch<bf16> packed_, gram_, polynomial_;
  Scratch<float> sums_;
};

}  // namespace

at::Tensor newton_schulz(const at::Tensor& x) {
  const int64_t rows = x.size(1), columns = x.size(2), m = std::min(rows, columns),
                n = std::max(rows, columns);
  if (x.scalar_type() != at::kFloat || x.numel() == 0 || x.stride(2) != 1 || !supports_gemm(m, n) ||
      m * n > kLargestMatrix) {
    return ops::newton_schulz_reference(x);
  }
  auto out = empty({x.size(0), rows, columns}, at::kBFloat16);
  const auto* from = x.const_data_ptr<float>();
  auto* to = out.data_ptr<bf16>();
  const int64_t matrix = x.stride(0), stride = x.stride(1);
  parallel_tasks(x.size(0), [&](int64_t i) {
    bf16* y = to + i * m * n;
    float squares = 0;
    for (int64_t r = 0; r < rows; ++r)
      squares += round_row(from + i * matrix + r * stride, columns, y + r * columns);
    const auto norm = static_cast<float>(bf16(std::sqrt(squares)));
    scale_row(y, m * n, std::max(norm, static_cast<float>(NewtonSchulz::kEps)));
    Iteration iteration(m, n);
    const bool tall = rows > columns;
    const auto transposed = scratch<bf16>(tall ? m * n : 0);
    if (tall) transpose(y, rows, columns, columns, rows, transposed.get(), rows);
    for (int64_t step = 0; step < NewtonSchulz::kSteps; ++step) iteration.run(tall ? transposed.get() : y);
    if (tall) transpose(transposed.get(), m, n, n, m, y, m);
  });
  return out;
}

}  // namespace hero::cpu
