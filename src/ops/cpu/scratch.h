#pragma once
// Aligned scratch memory for operands and results of GEMMs.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace hero::cpu {

/// Uninitialized memory that starts on a cache line: tile rows that straddle two lines load up to twice as
/// slowly. Blocks of up to 256 KiB come from a cache of the calling thread; tasks need the same sizes again
/// and again.
void* take_block(size_t bytes);
/// Returns a block to the cache of the calling thread; `bytes` as in take_block.
void return_block(void* block, size_t bytes);

struct ReturnBlock {
  size_t bytes = 0;

  void operator()(void* block) const { return_block(block, bytes); }
};

template <class T>
using Scratch = std::unique_ptr<T[], ReturnBlock>;

/// `size` uninitialized elements (take_block).
template <class T>
Scratch<T> scratch(int64_t size) {
  static_assert(std::is_trivially_destructible_v<T>);
  const size_t bytes = static_cast<size_t>(size) * sizeof(T);
  return Scratch<T>(static_cast<T*>(take_block(bytes)), ReturnBlock{bytes});
}

/// out [padded_rows, padded_columns] = in [rows, columns] with row stride ld, the rest zero.
template <class T>
void copy_padded(const T* in, int64_t ld, int64_t rows, int64_t columns, T* out, int64_t padded_rows,
                 int64_t padded_columns) {
  for (int64_t r = 0; r < rows; ++r, in += ld, out += padded_columns) {
    std::copy_n(in, columns, out);
    std::fill(out + columns, out + padded_columns, T(0));
  }
  std::fill(out, out + (padded_rows - rows) * padded_columns, T(0));
}

/// A matrix [rows, columns] with zeros after its columns up to a multiple of `multiple`: a copy if there are
/// any.
template <class T>
class PaddedColumns {
 public:
  PaddedColumns(const T* in, int64_t ld, int64_t rows, int64_t columns, int64_t multiple)
      : data_(in), ld_(ld), columns_((columns + multiple - 1) / multiple * multiple) {
    if (columns == columns_) return;
    copy_ = scratch<T>(rows * columns_);
    copy_padded(in, ld, rows, columns, copy_.get(), rows, columns_);
    data_ = copy_.get();
    ld_ = columns_;
  }

  const T* data() const { return data_; }
  int64_t ld() const { return ld_; }
  int64_t columns() const { return columns_; }

 private:
  const T* data_;
  int64_t ld_, columns_;
  Scratch<T> copy_;
};

}  // namespace hero::cpu
