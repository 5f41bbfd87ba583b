#pragma once
#include <ATen/core/Tensor.h>

namespace hero::ops {

/// Counts the assignments of each expert in every group: ids_GN int64 [G, N] in [0, E), -1 to skip an
/// assignment -> [G, E] int64. Integer sums, so the order of additions does not matter.
at::Tensor count_assignments(const at::Tensor& ids_GN, int64_t experts);

/// Reference implementation for any device.
at::Tensor count_assignments_reference(const at::Tensor& ids, int64_t experts);

}  // namespace hero::ops
