#include "train/process.h"

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <cstdlib>
#include <memory>
#include <new>

#include "io/cores.h"

namespace hero {
namespace {

// CPU allocator on malloc with its own alignment. PyTorch uses posix_memalign, which in glibc before 2.38
// searches for a free block larger than the request by the alignment: a tensor never reuses the block of a
// freed tensor of its size, and the heap of a training run grew by a fifth.
class MallocAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::kCPU)};
    void* raw = std::malloc(bytes + kAlignment + sizeof(void*));
    if (!raw) {
      c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
      throw std::bad_alloc();
    }
    void* aligned = static_cast<char*>(raw) + sizeof(void*);
    size_t room = bytes + kAlignment;
    std::align(kAlignment, bytes, aligned, room);
    static_cast<void**>(aligned)[-1] = raw;
    c10::profiledCPUMemoryReporter().New(aligned, bytes);
    return {aligned, aligned, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static constexpr size_t kAlignment = 64;

  static void release(void* aligned) {
    if (!aligned) return;
    c10::profiledCPUMemoryReporter().Delete(aligned);
    std::free(static_cast<void**>(aligned)[-1]);
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
  static MallocAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/1);
}

}  // namespace hero
