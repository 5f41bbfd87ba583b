#include "ops/cpu_allocator.h"

#include <c10/core/CPUAllocator.h>

#include <new>

#include "io/aligned_memory.h"

namespace hero {
namespace {

class AlignedAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::kCPU)};
    void* memory = allocate_aligned(bytes);
    if (!memory) {
      c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
      throw std::bad_alloc();
    }
    c10::profiledCPUMemoryReporter().New(memory, bytes);
    return {memory, memory, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void release(void* memory) {
    if (!memory) return;
    c10::profiledCPUMemoryReporter().Delete(memory);
    free_aligned(memory);
  }
};

}  // namespace

void use_aligned_allocator() {
  static auto* const allocator = new AlignedAllocator;  // never deleted: tensors can outlive static objects
  c10::SetCPUAllocator(allocator, /*priority=*/1);
}

}  // namespace hero
