#pragma once
// Kernels over many flat tensors: one launch covers the tensors of a table, which the kernel receives as its
// argument, and each thread block processes one chunk of one tensor.
#include "ops/cuda/kernels/device.cuh"

namespace hero::ops::cuda {

/// Part of a tensor that one thread block processes.
struct Chunk {
  int tensor;     // index in the table
  int64_t begin;  // first element
  int size;       // elements
};

/// Tensors of one launch; Tensor holds their pointers. Chunks have `chunk` elements, the last one of a tensor
/// may have fewer.
template <typename Tensor, int capacity, int chunk>
struct ChunkTable {
  static constexpr int kCapacity = capacity;

  Tensor tensor[capacity];
  int64_t size[capacity];          // elements
  unsigned first_block[capacity];  // block of the first chunk
  int tensors = 0;
  unsigned blocks = 0;

  /// Tensors without elements are left out.
  void add(const Tensor& pointers, int64_t elements) {
    if (elements == 0) return;
    tensor[tensors] = pointers;
    size[tensors] = elements;
    first_block[tensors++] = blocks;
    blocks += static_cast<unsigned>((elements + chunk - 1) / chunk);
  }

  __device__ __forceinline__ Chunk of_block(unsigned block) const {
    int low = 0, high = tensors;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first_block[middle] <= block ? low : high) = middle;
    }
    const int64_t begin = static_cast<int64_t>(block - first_block[low]) * chunk;
    const int64_t left = size[low] - begin;
    return {low, begin, left < chunk ? static_cast<int>(left) : chunk};
  }
};

/// Distributes tensors 0 to `tensors` - 1 over tables: add(table, i) adds one, launch(table) is called for
/// each table with elements.
template <typename Table, typename Add, typename Launch>
void for_each_table(size_t tensors, const Add& add, const Launch& launch) {
  Table table;
  for (size_t i = 0; i < tensors; ++i) {
    add(table, i);
    if (table.tensors < Table::kCapacity) continue;
    launch(table);
    table.tensors = 0;
    table.blocks = 0;
  }
  if (table.tensors > 0) launch(table);
}

/// Whether the address is a multiple of `bytes`.
__device__ __forceinline__ bool is_aligned(const void* address, int bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

}  // namespace hero::ops::cuda
