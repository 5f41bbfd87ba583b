#pragma once

namespace hero {

/// Makes LibTorch allocate CPU tensors with allocate_aligned (io/aligned_memory.h) instead of posix_memalign:
/// freed blocks are reused by tensors of the same size, and small tensors take less time. Applies to the rest
/// of the process; tensors allocated before are freed as they were allocated.
void use_aligned_allocator();

}  // namespace hero
