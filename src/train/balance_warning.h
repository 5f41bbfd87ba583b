#pragma once
// Warnings about experts that receive far too many tokens, or none, for many steps in a row.
#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"

namespace at {
class Tensor;
}

namespace hero {

/// Each kind, overloaded and idle, is reported once per process: a resumed run counts from the beginning.
class BalanceWarning {
 public:
  static constexpr int64_t kSteps = 100;      ///< in a row
  static constexpr double kOverloaded = 5.0;  ///< times the uniform share K/E

  explicit BalanceWarning(const Config& config);

  /// Call once per step. `assigned_LE`: the assignments of the whole step before capacity, fp64 on the CPU.
  /// Returns the warnings that this step completes.
  std::vector<std::string> add(const at::Tensor& assigned_LE);

 private:
  struct Expert {
    int64_t overloaded = 0, idle = 0;  ///< steps in a row
    double shares = 0;                 ///< sum over the overloaded steps
  };

  std::string overloaded_line() const;
  std::string idle_line() const;
  std::string name(size_t index) const;

  int64_t experts_per_layer_;
  int64_t experts_per_token_;
  std::string advice_;
  std::vector<Expert> experts_;  ///< of all layers
  bool reported_overloaded_ = false, reported_idle_ = false;
};

}  // namespace hero
