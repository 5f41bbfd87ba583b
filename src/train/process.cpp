#include "train/process.h"

#include <ATen/Parallel.h>
#include <malloc.h>

#include "io/cores.h"
#include "ops/cpu_allocator.h"

namespace hero {

void prepare_process(const Config& config, int64_t processes) {
  const int64_t share = std::max<int64_t>(available_cores() / (has_own_cores() ? 1 : processes), 1);
  at::set_num_threads(static_cast<int>(config.train.threads > 0 ? config.train.threads : share));
  // A step frees and reallocates tensors and packed weights thousands of times. Keep them all in one heap
  // that keeps its pages: the kernel would zero the pages of separate mappings at every allocation.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_TOP_PAD, 64 << 20);
  use_aligned_allocator();
}

}  // namespace hero
