#pragma once
// The weight of a router as an operand of GEMMs.
#include <ATen/core/Tensor.h>

#include "ops/cpu/scratch.h"
#include "ops/cpu/typed_gemm.h"

namespace hero::cpu {

constexpr int64_t kGemmMultiple = 16;  // of the rows and columns that GEMMs take

/// W as right-hand sides of x (from column 0) and of the history (from column d): packed unless there
/// are few rows.
template <typename T>
class RouterWeight {
 public:
  RouterWeight(const at::Tensor& w, int64_t rows, int64_t d)
      : e_(round_up(w.size(0), kGemmMultiple)), ld_(w.stride(0)), weight_(w.const_data_ptr<T>()) {
    const int64_t e = w.size(0), seen = round_up(w.size(1) - d, kGemmMultiple);
    if (e != e_) {  // then seen may be rounded up, too
      copy_ = scratch<T>(e_ * (d + seen));
      copy_padded(weight_, ld_, e, w.size(1), copy_.get(), e_, d + seen);
      weight_ = copy_.get();
      ld_ = d + seen;
    }
    if (rows <= kUnpackedRows<T>) return;
    packed_ = scratch<T>(e_ * (d + seen));
    pack(weight_, d, e_, ld_, true, packed_.get());
    if (seen) pack(weight_ + d, seen, e_, ld_, true, packed_.get() + e_ * d);
  }

  /// E, rounded up.
  int64_t experts() const { return e_; }

  // c [m, experts()] = a [m, k] times the columns of W from `first` on.
  void multiply(int64_t m, int64_t k, const T* a, int64_t lda, int64_t first, float* c) const {
    if (packed_) return gemm(m, e_, k, a, lda, packed_.get() + e_ * first, c, e_);
    skinny_gemm(m, e_, k, a, lda, weight_ + first, ld_, c, e_);
  }

 private:
  int64_t e_, ld_;
  const T* weight_;
  Scratch<T> copy_;
  Scratch<T> packed_;
};

}  // namespace hero::cpu
