#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

namespace hero {

/// What this rank's optimizer owns of a parameter. The pieces of all ranks together are every parameter once.
struct Piece {
  size_t parameter;                        ///< in Parameters::all()
  int64_t begin, end;                      ///< elements of the flattened parameter
  at::Tensor values, exp_avg, exp_avg_sq;  ///< 1-D [end - begin]; moments undefined where frozen
};

}  // namespace hero
