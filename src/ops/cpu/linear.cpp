// bf16 linear on packed GEMM; fp32 forward passes, and bf16 ones of few rows, on skinny GEMM without packing;
// everything else uses the reference. Rows of W after a multiple of 16, as of vocabularies, are multiplied on
// their own in forward passes.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/skinny_gemm.h"
#include "ops/reference.h"

namespace hero::cpu {
namespace {

bool fused(const at::Tensor& a, int64_t k, int64_t n) {
  return a.scalar_type() == at::kBFloat16 && supports_gemm(k, n);
}

// The first n columns of c [T, N] = a [T, k] * b, with b packed once for all threads.
void multiply(const at::Tensor& a, const at::Tensor& w, int64_t n, bool transposed, const at::Tensor& c) {
  const int64_t rows = a.size(0), k = a.size(1), ldc = c.size(1);
  auto packed = at::empty({k * n}, a.options());
  const auto weight = w.contiguous();
  auto* b = packed.data_ptr<bf16>();
  pack(weight.data_ptr<bf16>(), k, n, weight.size(1), transposed, b);
  const auto* in = a.data_ptr<bf16>();
  auto* out = c.data_ptr<bf16>();
  // Tasks are blocks of rows, of some of the panels if there are few rows.
  const int64_t block = 2 * kBlockRows, blocks = (rows + block - 1) / block, all = panels(n),
                groups =
                    std::clamp<int64_t>(2 * at::get_num_threads() / std::max<int64_t>(1, blocks), 1, all),
                share = (all + groups - 1) / groups, width = share * kPanelWidth;
  parallel_tasks(blocks * groups, [&](int64_t i) {
    const int64_t r = i / groups * block, first = i % groups * width;
    if (first >= n) return;
    gemm_bf16(std::min(block, rows - r), std::min(width, n - first), k, in + r * k, k, b + first * k,
              out + r * ldc + first, ldc);
  });
}

// The first n columns of y [T, N] = x [T, k] * w^T. Tasks are blocks of rows and ranges of columns, all rows
// of a range one after the other.
template <typename T>
void multiply_skinny(const at::Tensor& x, const at::Tensor& w, int64_t n, const at::Tensor& y) {
  const int64_t rows = x.size(0), k = w.size(1), ldy = y.size(1), block = 2 * kBlockRows,
                blocks = (rows + block - 1) / block;
  const int64_t width = std::min(n, round_up(grain(std::min(rows, block) * k), 16)),
                ranges = (n + width - 1) / width;
  parallel_ranges(blocks * ranges, 1, [&](int64_t i, int64_t) {
    const int64_t first = i / blocks * width, r = i % blocks * block;
    skinny_gemm(std::min(block, rows - r), std::min(width, n - first), k, x.const_data_ptr<T>() + r * k, k,
                w.const_data_ptr<T>() + first * w.stride(0), w.stride(0), y.data_ptr<T>() + r * ldy + first,
                ldy);
  });
}

// Columns [first, N) of y [T, N] = x [T, k] * w^T, fewer than 16.
template <typename T>
void multiply_last(const at::Tensor& x, const at::Tensor& w, int64_t first, const at::Tensor& y) {
  const int64_t k = w.size(1), n = y.size(1), count = n - first;
  if (count == 0) return;
  const auto last = scratch<T>(16 * k);
  copy_padded(w.const_data_ptr<T>() + first * w.stride(0), w.stride(0), count, k, last.get(), 16, k);
  parallel_ranges(x.size(0), kBlockRows, [&](int64_t r, int64_t end) {
    T columns[kBlockRows * 16];
    skinny_gemm(end - r, 16, k, x.const_data_ptr<T>() + r * k, k, last.get(), k, columns, 16);
    for (int64_t i = r; i < end; ++i)
      std::copy_n(columns + (i - r) * 16, count, y.data_ptr<T>() + i * n + first);
  });
}

}  // namespace

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& w) {
  const int64_t rows = x.size(0), k = x.size(1), n = w.size(0), whole = n / 16 * 16;
  const bool fp32 = x.scalar_type() == at::kFloat && rows <= max_skinny_rows_fp32() && x.is_contiguous();
  if (!(fp32 || x.scalar_type() == at::kBFloat16) || !supports_gemm(k) || whole == 0)
    return ops::linear_forward_reference(x, w);
  const auto weight = w.stride(1) == 1 ? w : w.contiguous();
  auto y = at::empty({rows, n}, x.options());
  if (fp32) {
    multiply_skinny<float>(x, weight, whole, y);
    multiply_last<float>(x, weight, whole, y);
  } else {
    if (rows <= kSkinnyRows) {
      multiply_skinny<bf16>(x, weight, whole, y);
    } else {
      multiply(x, weight, whole, true, y);
    }
    multiply_last<bf16>(x, weight, whole, y);
  }
  return y;
}

at::Tensor linear_backward_input(const at::Tensor& dy, const at::Tensor& w) {
  if (!fused(dy, dy.size(1), w.size(1))) return ops::linear_backward_input_reference(dy, w);
  auto dx = at::empty({dy.size(0), w.size(1)}, dy.options());
  multiply(dy, w, w.size(1), false, dx);
  return dx;
}

at::Tensor linear_backward_weight(const at::Tensor& dy, const at::Tensor& x) {
  const int64_t n = dy.size(1), k = x.size(1);
  if (!fused(dy, n, k)) return ops::linear_backward_weight_reference(dy, x);
  auto dw = at::empty({n, k}, dy.options().dtype(at::kFloat));
  weight_gradient(dy.data_ptr<bf16>(), n, x.data_ptr<bf16>(), k, dy.size(0), n, k, dw.data_ptr<float>(), k);
  return dw;
}

}  // namespace hero::cpu
