#pragma once
// The history blocks of a model's routers, read alone: no other weight of the folder is touched.
#include <filesystem>

#include "model/history.h"

namespace hero {

class RouterHistory {
 public:
  /// Reads the routers' weights out of a model folder of this configuration. UserError where the router has
  /// no history (`router.kind = "baseline"`), where a tensor is missing or has another shape, and for numbers
  /// that are not finite.
  RouterHistory(const std::filesystem::path& folder, const Config& config);

  const HistoryLayout& layout() const { return layout_; }
  /// W_R^(l,p) [E, E] fp64: target experts down, source experts across. p must be visible to l.
  at::Tensor block(int64_t l, int64_t p) const;
  /// sqrt((l-1)/M_l), by which rho weighs the history; 1 where `router.scale` is false.
  double depth_factor(int64_t l) const { return scale_ ? layout_.depth_factor(l) : 1.0; }

 private:
  HistoryLayout layout_;
  bool scale_;
  std::vector<at::Tensor> blocks_;  // of layer l [E, M*E], in the file's type; undefined where M_l = 0
};

}  // namespace hero
