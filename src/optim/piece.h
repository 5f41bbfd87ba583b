#pragma once
#include <ATen/core/Tensor.h>

namespace hero {

/// What this rank's optimizer owns of a parameter: all of it, or a part where ranks share the work (ZeRO-1,
/// arXiv 1910.02054).
struct Piece {
  size_t parameter = 0;                    ///< in Parameters::all()
  int64_t begin = 0, end = 0;              ///< elements of the flattened parameter
  at::Tensor values, exp_avg, exp_avg_sq;  ///< [end - begin], fp32 (fp64); moments undefined where frozen
};

}  // namespace hero
