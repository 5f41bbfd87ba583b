#pragma once
#include <ATen/core/Tensor.h>

namespace hero::ops {

/// Assignments of each expert within every group: ids_GN int64 [G, N] in [0, E), -1 for an assignment that
/// does not count -> [G, E] int64. Integers only, so that the order of the additions does not matter.
at::Tensor count_assignments(const at::Tensor& ids_GN, int64_t experts);

/// Its plain form, for any device.
at::Tensor count_assignments_plain(const at::Tensor& ids, int64_t experts);

}  // namespace hero::ops
