#include "train/process.h"

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <new>

#include "io/aligned_memory.h"
#include "io/cores.h"

namespace hero {
namespace {

// CPU allocator on allocate_aligned instead of PyTorch's posix_memalign.
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

void prepare_process(const Config& config, int64_t processes) {
  const int64_t share = std::max<int64_t>(available_cores() / (has_own_cores() ? 1 : processes), 1);
  at::set_num_threads(static_cast<int>(config.train.threads > 0 ? config.train.threads : share));
  // A step frees and reallocates tensors and packed weights thousands of times. Keep them all in one heap
  // that keeps its pages: the kernel would zero the pages of separate mappings at every allocation.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_TOP_PAD, 64 << 20);
  static AlignedAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/1);
}

}  // namespace hero
