// bf16 linear and fp32 forward passes on packed GEMM, of few rows without packing; everything else uses the
// reference. Rows of W after a multiple of 16, as of vocabularies, are multiplied on their own in forward
// passes.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>

#include "ops/cpu/empty.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/typed_gemm.h"
#include "ops/reference.h"

namespace hero::cpu {
namespace {

bool fused(const at::Tensor& a, int64_t k, int64_t n) {
  return a.scalar_type() == at::kBFloat16 && supports_gemm(k, n);
}

// The first n columns of c [T, N] = a [T, k] * b, with b packed once for all threads.
template <typename T>
void multiply(const at::Tensor& a, const at::Tensor& w, int64_t n, bool transposed, const at::Tensor& c) {
  const int64_t rows = a.size(0), k = a.size(1), ldc = c.size(1);
  auto packed = empty({k * n}, a.scalar_type());
  const auto weight = w.contiguous();
  auto* b = packed.data_ptr<T>();
  pack(weight.const_data_ptr<T>(), k, n, weight.size(1), transposed, b);
  const auto* in = a.const_data_ptr<T>();
  auto* out = c.data_ptr<T>();
  // Tasks are blocks of rows, of some of the panels if there are few rows.
  const int64_t block = 2 * kBlockRows, blocks = (rows + block - 1) / block, all = panels(n),
                groups =
                    std::clamp<int64_t>(2 * at::get_num_threads() / std::max<int64_t>(1, blocks), 1, all),
                share = (all + groups - 1) / groups, width = share * kPanelWidth;
  parallel_tasks(blocks * groups, [&](int64_t i) {
    const int64_t r = i / groups * block, first = i % groups * width;
    if (first >= n) return;
    multiply_packed(std::min(block, rows - r), std::min(width, n - first), k, in + r * k, k, b + first * k,
                    out + r * ldc + first, ldc);
  });
}

// The first n columns of y [T, N] = x [T, k] * w^T for few rows. Tasks are ranges of columns.
template <typename T>
void multiply_skinny(const at::Tensor& x, const at::Tensor& w, int64_t n, const at::Tensor& y) {
  const int64_t rows = x.size(0), k = w.size(1);
  parallel_ranges(n, round_up(product_grain(rows, k), 16), [&](int64_t first, int64_t end) {
    skinny_gemm(rows, end - first, k, x.const_data_ptr<T>(), k, w.const_data_ptr<T>() + first * w.stride(0),
                w.stride(0), y.data_ptr<T>() + first, y.size(1));
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

template <typename T>
at::Tensor forward(const at::Tensor& x, const at::Tensor& w, int64_t whole) {
  const int64_t rows = x.size(0);
  const auto weight = w.stride(1) == 1 ? w : w.contiguous();
  auto y = empty({rows, w.size(0)}, x.scalar_type());
  if (rows <= kUnpackedRows<T>) {
    multiply_skinny<T>(x, weight, whole, y);
  } else {
    multiply<T>(x, weight, whole, true, y);
  }
  multiply_last<T>(x, weight, whole, y);
  return y;
}

}  // namespace

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& w) {
  const int64_t whole = w.size(0) / 16 * 16;
  const bool supported = supports_gemm(x.size(1)) && whole > 0;
  if (supported && x.scalar_type() == at::kFloat && x.is_contiguous()) return forward<float>(x, w, whole);
  if (supported && x.scalar_type() == at::kBFloat16) return forward<bf16>(x, w, whole);
  return ops::linear_forward_reference(x, w);
}

at::Tensor linear_backward_input(const at::Tensor& dy, const at::Tensor& w) {
  if (!fused(dy, dy.size(1), w.size(1))) return ops::linear_backward_input_reference(dy, w);
  auto dx = empty({dy.size(0), w.size(1)}, dy.scalar_type());
  multiply<bf16>(dy, w, w.size(1), false, dx);
  return dx;
}

at::Tensor linear_backward_weight(const at::Tensor& dy, const at::Tensor& x) {
  const int64_t n = dy.size(1), k = x.size(1);
  if (!fused(dy, n, k)) return ops::linear_backward_weight_reference(dy, x);
  auto dw = empty({n, k}, at::kFloat);
  weight_gradient(dy.data_ptr<bf16>(), n, x.data_ptr<bf16>(), k, dy.size(0), n, k, dw.data_ptr<float>(), k);
  return dw;
}

}  // namespace hero::cpu
