#pragma once
#include <cstdint>

namespace hero::ops {

/// An iteration is X <- a X + (b G + c G^2) X with G = X X^T; it starts from x / max(|x|, eps).
struct NewtonSchulz {
  static constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315, kEps = 1e-7;
  static constexpr int64_t kSteps = 5;
};

}  // namespace hero::ops
