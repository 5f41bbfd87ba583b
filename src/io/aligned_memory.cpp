#include "io/aligned_memory.h"

#include <cstdlib>
#include <memory>

namespace hero {

void* allocate_aligned(size_t bytes) {
  void* raw = std::malloc(bytes + kCacheLine + sizeof(void*));
  if (!raw) return nullptr;
  void* aligned = static_cast<char*>(raw) + sizeof(void*);
  size_t room = bytes + kCacheLine;
  std::align(kCacheLine, bytes, aligned, room);
  static_cast<void**>(aligned)[-1] = raw;
  return aligned;
}

void free_aligned(void* memory) {
  if (memory) std::free(static_cast<void**>(memory)[-1]);
}

}  // namespace hero
