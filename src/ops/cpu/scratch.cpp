// Caches of freed scratch memory, one per thread.
#include "ops/cpu/scratch.h"

#include <sanitizer/asan_interface.h>

#include <algorithm>
#include <array>
#include <bit>
#include <new>

#include "io/aligned_memory.h"

namespace hero::cpu {
namespace {

constexpr size_t kSmallest = 4 << 10, kLargest = 256 << 10;  // bytes of the cached blocks, powers of two
constexpr size_t kSizes = std::countr_zero(kLargest) - std::countr_zero(kSmallest) + 1;

void* allocate(size_t bytes) {
  void* block = allocate_aligned(bytes);
  if (!block) throw std::bad_alloc();
  return block;
}

// Up to four free blocks of each size: at most 2 MiB.
class Cache {
 public:
  Cache() = default;
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;
  ~Cache() {
    for (const Blocks& free : sizes_) {
      for (size_t i = 0; i < free.count; ++i) free_aligned(free.blocks[i]);
    }
  }

  void* take(size_t size) {
    Blocks& free = of(size);
    return free.count > 0 ? free.blocks[--free.count] : allocate(size);
  }
  void put(void* block, size_t size) {
    Blocks& free = of(size);
    if (free.count == free.blocks.size()) return free_aligned(block);
    free.blocks[free.count++] = block;
  }

 private:
  struct Blocks {
    std::array<void*, 4> blocks{};
    size_t count = 0;
  };

  Blocks& of(size_t size) { return sizes_[std::countr_zero(size) - std::countr_zero(kSmallest)]; }

  std::array<Blocks, kSizes> sizes_;
};

thread_local Cache cache;

size_t block_size(size_t bytes) { return std::max(kSmallest, std::bit_ceil(bytes)); }

}  // namespace

void* take_block(size_t bytes) {
  if (bytes == 0) return nullptr;
  if (bytes > kLargest) return allocate(bytes);
  const size_t size = block_size(bytes);
  void* block = cache.take(size);
  ASAN_POISON_MEMORY_REGION(block, size);
  ASAN_UNPOISON_MEMORY_REGION(block, bytes);
  return block;
}

void return_block(void* block, size_t bytes) {
  if (bytes > kLargest) return free_aligned(block);
  const size_t size = block_size(bytes);
  ASAN_POISON_MEMORY_REGION(block, size);
  cache.put(block, size);
}

}  // namespace hero::cpu
