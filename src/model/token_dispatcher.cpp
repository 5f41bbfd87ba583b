#include "model/token_dispatcher.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <numeric>

#include "ops/differentiable.h"

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

// Saved for the backward pass, which sends gradients to the source ranks.
struct AllToAllContext : torch::CustomClassHolder {
  AllToAllContext(const Group& over, Counts out, Counts in, int64_t n)
      : group(over), sent(std::move(out)), received(std::move(in)), rows(n) {}
  const Group& group;
  Counts sent, received;
  int64_t rows;  ///< of the input, including rows that were not sent
};

// An all-to-all from `rows` to `received_rows` that has already run; the backward pass reverses it.
struct AllToAll : torch::autograd::Function<AllToAll> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& rows,
                            const at::Tensor& received_rows, const Group* group, const Counts& sent,
                            const Counts& received) {
    auto context = c10::make_intrusive<AllToAllContext>(*group, sent, received, rows.size(0));
    ctx->saved_data["all_to_all"] = c10::IValue::make_capsule(std::move(context));
    return received_rows.detach();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto capsule = ctx->saved_data["all_to_all"].toCapsule();
    const auto& context = static_cast<const AllToAllContext&>(*capsule);
    const auto gradient = all_to_all(context.group, grads[0], context.received, context.sent);
    return {pad_rows(gradient, context.rows), {}, {}, {}, {}};
  }
};

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
  return ops::differentiable<AllToAll>(rows_, received_rows_, group_, sent_counts_, received_counts_);
}

at::Tensor TokenDispatcher::combine(const at::Tensor& rows) const {
  const auto returned = all_to_all(*group_, rows.detach(), received_counts_, sent_counts_);
  return pad_rows(ops::differentiable<AllToAll>(rows, returned, group_, received_counts_, sent_counts_),
                  rows_.size(0));
}

}  // namespace hero
