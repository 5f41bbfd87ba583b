#pragma once
#include <ATen/core/Tensor.h>

namespace hero {

/// The slice of a parameter that this rank's optimizer owns: all of it, or a part with a sharded optimizer
/// (ZeRO-1, arXiv 1910.02054).
struct ParameterShard {
  size_t parameter = 0;            ///< in Parameters::all()
  int64_t begin = 0, end = 0;      ///< elements of the flattened parameter
  at::Tensor values;               ///< [end - begin], fp32 (fp64)
  at::Tensor exp_avg, exp_avg_sq;  ///< alike; undefined if frozen, the second also for Muon
};

}  // namespace hero
