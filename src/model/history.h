#pragma once
// The routing history of one micro-batch (HERO-MoE, "Stage-Local Historical Routing"). One buffer [T,
// slots*E] per stage, slots ordered by layer: a layer writes its detached softmax once, later layers read
// column ranges, nothing is concatenated. A recomputed layer rewrites its slot with the same values.
// Squares are kept per layer, not as a running sum, so that recomputation reads the same values.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <vector>

#include "config/config.h"
#include "ops/ops.h"

namespace hero {

/// Which layers each router sees, given the stages, window and scope of the configuration.
class HistoryLayout {
 public:
  /// `layers`: MoE layers of the main model; those of `modules` multi-token prediction modules follow them in
  /// the last stage.
  HistoryLayout(int64_t layers, int64_t experts, const RouterConfig& router, int64_t modules = 0);

  int64_t layers() const { return static_cast<int64_t>(stage_of_.size()); }
  int64_t experts() const { return experts_; }
  /// Values per token in a layer's slot: E for HERO, 0 without history.
  int64_t width() const { return width_; }
  const std::vector<int64_t>& stage_of() const { return stage_of_; }
  /// S(l), oldest first; l from 1. Empty for a baseline router.
  const std::vector<int64_t>& visible(int64_t l) const { return visible_[l - 1]; }
  /// Whether any layer sees an earlier one.
  bool has_visible_layers() const;
  /// sqrt((l-1)/M_l); 1 if no layer is visible.
  double depth_factor(int64_t l) const;
  /// Layers before l that layer l or a later one sees, ascending: a process that computes from l on must
  /// receive their history. l from 1 to layers() + 1.
  const std::vector<int64_t>& needed_from(int64_t l) const { return needed_from_[l - 1]; }
  /// Slots, over all buffers, of a process that computes MoE layers [first, last): theirs and those of
  /// needed_from(first), with any layers of the same buffer in between.
  int64_t slots_of(int64_t first, int64_t last) const;

 private:
  friend class RoutingHistory;
  struct SlotRange {
    int64_t begin = 0, end = 0;  // in a buffer
    int64_t size() const { return std::max<int64_t>(end - begin, 0); }
  };
  // The layers that a process which computes MoE layers [first, last) stores, and their slots by buffer.
  std::vector<int64_t> stored_layers(int64_t first, int64_t last) const;
  std::vector<SlotRange> slot_ranges(const std::vector<int64_t>& stored) const;

  int64_t experts_, width_;
  std::vector<int64_t> stage_of_;
  std::vector<std::vector<int64_t>> visible_;
  std::vector<std::vector<int64_t>> needed_from_;
  std::vector<int64_t> group_;  // buffer of each layer: its stage, or 0 with global scope
  std::vector<int64_t> index_;  // index of each layer in its group
  std::vector<int64_t> slots_;  // slots of each buffer: no layer reads a group's last layer
};

class RoutingHistory {
 public:
  /// `dtype`: the type that probabilities are rounded to. `differentiable`: keep them as tensors with
  /// gradient instead of in a buffer (router.detach = false).
  RoutingHistory(const HistoryLayout& layout, int64_t tokens, at::ScalarType dtype, bool differentiable,
                 at::Device device = at::kCPU);
  /// For a process that computes MoE layers [first, last): allocates their slots and those of
  /// layout.needed_from(first).
  RoutingHistory(const HistoryLayout& layout, int64_t first, int64_t last, int64_t tokens,
                 at::ScalarType dtype, bool differentiable, at::Device device);

  /// The history that layer l reads; none if M_l = 0.
  std::optional<ops::VisibleHistory> visible(int64_t l, const RouterConfig& router) const;
  /// The slot that layer l writes; undefined tensors if no layer reads it.
  ops::HistorySlot slot(int64_t l) const;

  int64_t tokens() const { return tokens_; }
  bool differentiable() const { return differentiable_; }
  std::vector<at::Tensor> visible_differentiable(int64_t l) const;
  /// Rounds probs to the history's type, as slots do; the gradient passes unchanged (straight-through).
  void store_differentiable(int64_t l, const at::Tensor& probs);

  /// Stores probabilities [T, E] of layer l that another rank computed.
  void store(int64_t l, const at::Tensor& probs);

 private:
  const HistoryLayout* layout_;
  int64_t tokens_;
  at::ScalarType dtype_;
  bool differentiable_;
  struct Views {
    ops::HistorySlot slot;
    at::Tensor visible_probs, visible_sumsq;
  };
  std::vector<Views> views_;  // per layer, of its group's buffer; decoding steps reuse them
  std::vector<at::Tensor> differentiable_probs_;  // per layer
};

}  // namespace hero
