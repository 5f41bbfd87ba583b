#pragma once
// The history blocks of a model's routers; reads no other weights.
#include <filesystem>

#include "model/history.h"

namespace hero {

class RouterHistory {
 public:
  /// Reads the router weights of a model folder with this configuration. UserError if the router has no
  /// history (`router.kind = "baseline"`), a tensor is missing or has the wrong shape, or a value is not
  /// finite.
  RouterHistory(const std::filesystem::path& folder, const Config& config);

  const HistoryLayout& layout() const { return layout_; }
  /// W_R^(l,p) [E, E] fp64: rows are target experts, columns source experts. p must be visible to l.
  at::Tensor block(int64_t l, int64_t p) const;
  /// sqrt((l-1)/M_l), the history's factor in rho; 1 if `router.scale` is false.
  double depth_factor(int64_t l) const { return scale_ ? layout_.depth_factor(l) : 1.0; }

 private:
  HistoryLayout layout_;
  bool scale_;
  std::vector<at::Tensor> blocks_;  // per layer fp64 [E, M*E]; undefined if M_l = 0
};

}  // namespace hero
