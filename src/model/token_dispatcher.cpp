#include "model/token_dispatcher.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <numeric>

#include "ops/autograd.h"

namespace hero {
namespace {

using Counts = std::vector<int64_t>;

int64_t sum(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

at::Tensor all_to_all(const Group& group, const at::Tensor& rows, const Counts& in, const Counts& out) {
  const auto received = at::empty({sum(out), rows.size(1)}, rows.options());
  group.all_to_all(received, rows.contiguous(), out, in).wait();
  return received;
}

// Pads `rows` with zeros to `count` rows.
at::Tensor pad_rows(const at::Tensor& rows, int64_t count) {
  const int64_t missing = count - rows.size(0);
  return missing > 0 ? at::constant_pad_nd(rows, {0, 0, 0, missing}) : rows;
}

// `received`, the result of an all-to-all of `rows` that has already run; the backward pass reverses it.
at::Tensor with_reverse(const Group& group, const at::Tensor& rows, const at::Tensor& received,
                        const Counts& sent_counts, const Counts& received_counts) {
  // The number of rows includes those that were not sent.
  const auto backward = [&group, sent_counts, received_counts, count = rows.size(0)](
                            const std::vector<at::Tensor>&,
                            const std::vector<at::Tensor>& gradients) -> std::vector<at::Tensor> {
    return {pad_rows(all_to_all(group, gradients[0], received_counts, sent_counts), count)};
  };
  return ops::with_backward({received.detach()}, {rows}, {}, backward)[0];
}

}  // namespace

TokenDispatcher::TokenDispatcher(const Group& group, const at::Tensor& rows_ND, const at::Tensor& counts_E)
    : group_(&group), rows_(rows_ND) {
  const at::NoGradGuard no_grad;
  const int64_t ranks = group.size(), experts = counts_E.size(0) / ranks;
  const Counts each(ranks, experts);
  const auto incoming = at::empty_like(counts_E);
  group.all_to_all(incoming, counts_E.contiguous(), each, each).wait();
  const auto counts = at::stack({counts_E, incoming}).cpu();
  const auto* n = counts.const_data_ptr<int64_t>();
  for (int64_t r = 0; r < ranks; ++r) {
    const auto* sent = n + r * experts;
    sent_counts_.push_back(std::accumulate(sent, sent + experts, int64_t{0}));
    const auto* received = sent + counts_E.size(0);
    received_counts_.push_back(std::accumulate(received, received + experts, int64_t{0}));
  }
  local_expert_ids_ = at::arange(experts, incoming.options())
                          .repeat(ranks)
                          .repeat_interleave(incoming, /*dim=*/0, sum(received_counts_))
                          .unsqueeze(1);
  const auto sent_rows = rows_ND.detach().slice(0, 0, sum(sent_counts_)).contiguous();
  received_rows_ = at::empty({sum(received_counts_), rows_ND.size(1)}, rows_ND.options());
  pending_ = group.all_to_all(received_rows_, sent_rows, received_counts_, sent_counts_);
}

at::Tensor TokenDispatcher::finish_dispatch() {
  pending_.wait();
  return with_reverse(*group_, rows_, received_rows_, sent_counts_, received_counts_);
}

at::Tensor TokenDispatcher::combine(const at::Tensor& rows) const {
  const auto returned = all_to_all(*group_, rows.detach(), received_counts_, sent_counts_);
  return pad_rows(with_reverse(*group_, rows, returned, received_counts_, sent_counts_), rows_.size(0));
}

}  // namespace hero
