#pragma once
// Memory on malloc that starts on a cache line. aligned_alloc and posix_memalign of glibc before 2.38 search
// for a free block larger than the request by the alignment: they never reuse the block of a freed request of
// the same size, and the heap of a training run grew by a fifth.
#include <cstddef>

namespace hero {

inline constexpr size_t kCacheLine = 64;  // bytes

/// Null if there is not enough memory. free_aligned releases it.
void* allocate_aligned(size_t bytes);
/// Nothing for null.
void free_aligned(void* memory);

}  // namespace hero
