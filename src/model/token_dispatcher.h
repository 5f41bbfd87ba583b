#pragma once
// Expert-parallel token dispatch: an all-to-all sends tokens to the ranks of their experts, another one
// returns the results. The backward pass of each is the opposite all-to-all.
#include <ATen/core/Tensor.h>

#include <vector>

#include "distributed/group.h"

namespace hero {

class TokenDispatcher {
 public:
  /// Starts sending rows [N, D], sorted by expert, counts_E of each expert; the ranks of `group` hold equal
  /// numbers of experts, in order. Synchronizes with the host once, to read the counts. Rows beyond the
  /// counts' sum are not sent.
  TokenDispatcher(const Group& group, const at::Tensor& rows_ND, const at::Tensor& counts_E);

  /// Waits for the rows [N', D] of this rank's experts: ordered by source rank, then by expert.
  at::Tensor finish_dispatch();
  /// Local expert index of each received row, [N', 1].
  const at::Tensor& local_expert_ids() const { return local_expert_ids_; }
  /// Returns the experts' outputs, in the order of the received rows, to their source ranks: [N, D], zeros
  /// beyond the counts.
  at::Tensor combine(const at::Tensor& rows) const;

 private:
  const Group* group_;
  at::Tensor rows_, received_rows_, local_expert_ids_;
  std::vector<int64_t> sent_counts_, received_counts_;
  AsyncWork pending_;
};

}  // namespace hero
