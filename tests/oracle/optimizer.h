#pragma once
// Reference implementation of the optimizers, weight by weight under its name in checkpoints.
#include "oracle/oracle.h"

namespace oracle {

/// AdamW as in its paper (arXiv 1711.05101, Algorithm 2); Muon as in arXiv 2502.16982, section 2.2.
class Optimizer {
 public:
  explicit Optimizer(const hero::Config& config) : config_(config) {}

  /// Updates a weight in place; `step` from 1. W_O and W_R of a HERO router are two matrices.
  void update(const std::string& name, const at::Tensor& weight, const at::Tensor& gradient, int64_t step,
              double rate);

 private:
  struct Rates {
    double factor, decay;
  };
  void adamw(const std::string& name, const at::Tensor& weight, const at::Tensor& gradient, int64_t step,
             double rate, Rates rates);
  void muon(const std::string& name, const at::Tensor& weight, const at::Tensor& gradient, double rate,
            Rates rates);

  hero::Config config_;
  std::map<std::string, at::Tensor> first_, second_;  ///< moments
};

/// Key of a weight's component in metrics, and its decoder layer or -1. `history`: the columns W_R.
std::pair<std::string, int64_t> component(const std::string& name, const at::Tensor& weight, bool history);

/// Columns of W_O in a weight; all columns unless it is the weight of a HERO router.
int64_t hidden_columns(const hero::Config& config, const std::string& name, const at::Tensor& weight);

}  // namespace oracle
