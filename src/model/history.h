#pragma once
// The routing history of one micro-batch (HERO-MoE, "Stage-Local Historical Routing"). One buffer [T,
// slots*E] per stage, slots numbered by layer: a layer writes its detached softmax once, later layers read
// column ranges, nothing is ever concatenated. A replayed layer rewrites its slot with the same numbers.
// Squares are kept per layer, never as a running sum, so that a replay finds what the first pass found.
#include <ATen/core/Tensor.h>

#include <vector>

#include "config/config.h"
#include "ops/ops.h"

namespace hero {

/// Which layers every router sees, fixed by the model: stages, window, scope.
class HistoryLayout {
 public:
  HistoryLayout(int64_t layers, int64_t experts, const RouterConfig& router);

  int64_t layers() const { return static_cast<int64_t>(stage_of_.size()); }
  int64_t experts() const { return experts_; }
  const std::vector<int64_t>& stage_of() const { return stage_of_; }
  /// S(l), oldest first; l from 1. Empty for a baseline router.
  const std::vector<int64_t>& visible(int64_t l) const { return visible_[l - 1]; }
  /// sqrt((l-1)/M_l); 1 where nothing is visible.
  double depth_factor(int64_t l) const;
  /// Layers before l whose routing l or a later layer sees, ascending: what a process that computes from l on
  /// must be told. l from 1 to layers() + 1.
  const std::vector<int64_t>& needed_from(int64_t l) const { return needed_from_[l - 1]; }

 private:
  friend class RoutingHistory;
  int64_t experts_;
  std::vector<int64_t> stage_of_;
  std::vector<std::vector<int64_t>> visible_;
  std::vector<std::vector<int64_t>> needed_from_;
  std::vector<int64_t> group_;  // buffer of each layer: its stage, or 0 where the scope is global
  std::vector<int64_t> index_;  // place of each layer in its group
  std::vector<int64_t> slots_;  // slots of each buffer: nobody reads a group's last layer
};

class RoutingHistory {
 public:
  /// `dtype`: the type that probabilities are rounded to. `live`: keep them as differentiable tensors instead
  /// of in a buffer (router.detach = false).
  RoutingHistory(const HistoryLayout& layout, int64_t tokens, at::ScalarType dtype, bool live,
                 at::Device device = at::kCPU);
  /// For a process that computes MoE layers [first, last): their slots, and those of
  /// layout.needed_from(first).
  RoutingHistory(const HistoryLayout& layout, int64_t first, int64_t last, int64_t tokens,
                 at::ScalarType dtype, bool live, at::Device device);

  /// What layer l reads; none where M_l = 0.
  std::optional<ops::VisibleHistory> visible(int64_t l, const RouterConfig& router) const;
  /// Where layer l writes; undefined tensors where nobody reads it.
  ops::HistorySlot slot(int64_t l) const;

  bool live() const { return live_; }
  std::vector<at::Tensor> visible_live(int64_t l) const;
  /// Rounds probs to the history's type, as a slot does; the gradient passes unchanged (straight-through).
  void store_live(int64_t l, const at::Tensor& probs);

  /// Takes over what layer l wrote elsewhere, [T, E].
  void store(int64_t l, const at::Tensor& probs);

  /// Bytes of the buffers.
  int64_t bytes() const;

 private:
  const HistoryLayout* layout_;
  at::ScalarType dtype_;
  bool live_;
  std::vector<at::Tensor> probs_, sumsq_;  // per group: [T, slots*E], [T, slots]
  std::vector<int64_t> first_slot_;        // per group: the slot that its buffer begins with
  std::vector<at::Tensor> live_probs_;     // per layer
};

}  // namespace hero
