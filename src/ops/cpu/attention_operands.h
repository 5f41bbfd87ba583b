#pragma once
// Sizes and packed operands of the bf16 attention kernels. Operands are zero-padded
// to a multiple of 32 positions, so any length is supported.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <optional>

#include "ops/cpu/gemm.h"
#include "ops/cpu/scratch.h"

namespace hero::cpu {

constexpr int64_t kPadding = 32;  // positions, as AMX tiles multiply 32 rows at a time

/// [B, H, S, P] with contiguous rows.
struct Heads {
  bf16* data;
  int64_t batch, head, row;

  explicit Heads(const at::Tensor& x)
      : data(x.data_ptr<bf16>()), batch(x.stride(0)), head(x.stride(1)), row(x.stride(2)) {}
  bf16* at(int64_t b, int64_t h, int64_t s = 0) const { return data + b * batch + h * head + s * row; }
};

struct AttentionSizes {
  int64_t batch, heads, kv_heads, length, qk, v;

  AttentionSizes(const at::Tensor& q_tensor, const at::Tensor& k_tensor, const at::Tensor& v_tensor)
      : batch(q_tensor.size(0)),
        heads(q_tensor.size(1)),
        kv_heads(k_tensor.size(1)),
        length(q_tensor.size(2)),
        qk(q_tensor.size(3)),
        v(v_tensor.size(3)) {}
  int64_t groups() const { return heads / kv_heads; }
  int64_t blocks() const { return (length + kBlockRows - 1) / kBlockRows; }
  int64_t rows(int64_t block) const { return std::min(kBlockRows, length - block * kBlockRows); }
  int64_t padded() const { return round_up(length, kPadding); }
};

/// First visible key of each query of a block, nondecreasing; 0 without documents.
struct Starts {
  const int64_t* data = nullptr;

  int64_t operator[](int64_t row) const { return data ? data[row] : 0; }
  /// First key of the panel in which the block's visible keys begin.
  int64_t first_panel() const { return (*this)[0] / kPanelWidth * kPanelWidth; }
};

/// Starts of sequences [B, S].
class DocumentStarts {
 public:
  DocumentStarts(const std::optional<at::Tensor>& starts, int64_t length)
      : data_(starts ? starts->const_data_ptr<int64_t>() : nullptr), length_(length) {}
  Starts at(int64_t b, int64_t first) const { return {data_ ? data_ + b * length_ + first : nullptr}; }

 private:
  const int64_t* data_;
  int64_t length_;
};

/// Packs x^T [width, rows], padded, as the right-hand side of a GEMM over the width.
inline void pack_transposed(const bf16* x, int64_t rows, int64_t width, int64_t ld, bf16* packed) {
  const int64_t whole = rows / kPanelWidth, rest = rows % kPanelWidth, padded = round_up(rest, kPadding);
  for (int64_t p = 0; p < whole; ++p) pack_panel(x, width, width, rows, ld, /*transposed=*/true, p, packed);
  if (rest == 0) return;
  const auto last = scratch<bf16>(padded * width);
  copy_padded(x + whole * kPanelWidth * ld, ld, rest, width, last.get(), padded, width);
  pack_panel(last.get(), width, width, padded, width, /*transposed=*/true, 0,
             packed + whole * kPanelWidth * width);
}

/// Packs x [rows, width], padded, as the right-hand side of a GEMM over the rows.
inline void pack_rows(const bf16* x, int64_t rows, int64_t width, int64_t ld, bf16* packed) {
  for (int64_t p = 0; p < panels(width); ++p)
    pack_panel(x, round_up(rows, kPadding), rows, width, ld, /*transposed=*/false, p, packed);
}

/// c [m, width] (+)= a [m, k] * rows [first, first + k) of `packed`, which has `rows` rows; `first` must be
/// even.
inline void multiply_rows(int64_t m, int64_t k, const bf16* a, int64_t lda, const bf16* packed, int64_t rows,
                          int64_t first, int64_t width, float* c, int64_t ldc, bool accumulate) {
  for (int64_t p = 0; p < panels(width); ++p) {
    const int64_t columns = panel_width(width, p);
    gemm_panel(m, columns, k, a, lda, packed + p * kPanelWidth * rows + first * columns, 0,
               c + p * kPanelWidth, ldc, accumulate);
  }
}

}  // namespace hero::cpu
