#pragma once
// Rows on their way to the ranks that hold their experts, and back: an all-to-all in either direction, whose
// backward passes are the opposite ones.
#include <ATen/core/Tensor.h>

#include <vector>

#include "distributed/group.h"

namespace hero {

class RowExchange {
 public:
  /// Sends rows [N, D], sorted by expert, counts_E of each expert; the ranks of `group` hold equal shares of
  /// the experts in their order. The counts are read on the host, once; the rows are under way when this
  /// returns. Rows beyond the counts' sum stay here.
  RowExchange(const Group& group, const at::Tensor& rows_ND, const at::Tensor& counts_E);

  /// What came for this rank's experts: rank by rank, and within one sorted by expert.
  at::Tensor arrive();
  /// Of every such row, the number of its expert among this rank's, [N', 1].
  const at::Tensor& expert_of_row() const { return expert_of_row_; }
  /// Rows made of these, in their order, back to where those came from: [N, D], zeros beyond the counts.
  at::Tensor go_back(const at::Tensor& rows) const;

 private:
  const Group* group_;
  at::Tensor rows_, arriving_, expert_of_row_;
  std::vector<int64_t> sent_, received_;
  Pending under_way_;
};

}  // namespace hero
