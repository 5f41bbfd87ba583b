#include "model/row_exchange.h"

#include <ATen/ATen.h>

#include <numeric>

#include "ops/differentiable.h"

namespace hero {
namespace {

using Counts = std::vector<int64_t>;

int64_t sum(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

at::Tensor exchange(const Group& group, const at::Tensor& rows, const Counts& in, const Counts& out) {
  const auto arrived = at::empty({sum(out), rows.size(1)}, rows.options());
  group.all_to_all(arrived, rows.contiguous(), out, in).wait();
  return arrived;
}

// `rows` and zeros behind them, `count` in all.
at::Tensor filled_up(const at::Tensor& rows, int64_t count) {
  const int64_t missing = count - rows.size(0);
  return missing > 0 ? at::constant_pad_nd(rows, {0, 0, 0, missing}) : rows;
}

// What a backward pass must know to send gradients where rows came from.
struct Journey : torch::CustomClassHolder {
  Journey(const Group& over, Counts out, Counts in, int64_t n)
      : group(over), sent(std::move(out)), received(std::move(in)), rows(n) {}
  const Group& group;
  Counts sent, received;
  int64_t rows;  ///< there were, sent or not
};

// Rows that were sent as `sent` and came as `received`: forward the rows that came, backward their gradients
// to where they came from.
struct Arrive : torch::autograd::Function<Arrive> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& rows,
                            const at::Tensor& arrived, const Group* group, const Counts& sent,
                            const Counts& received) {
    auto journey = c10::make_intrusive<Journey>(*group, sent, received, rows.size(0));
    ctx->saved_data["journey"] = c10::IValue::make_capsule(std::move(journey));
    return arrived.detach();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto capsule = ctx->saved_data["journey"].toCapsule();
    const auto& journey = static_cast<const Journey&>(*capsule);
    const auto gradient = exchange(journey.group, grads[0], journey.received, journey.sent);
    return {filled_up(gradient, journey.rows), {}, {}, {}, {}};
  }
};

}  // namespace

RowExchange::RowExchange(const Group& group, const at::Tensor& rows_ND, const at::Tensor& counts_E)
    : group_(&group), rows_(rows_ND) {
  const at::NoGradGuard no_grad;
  const int64_t ranks = group.size(), experts = counts_E.size(0) / ranks;
  const Counts each(ranks, experts);
  const auto theirs = at::empty_like(counts_E);
  group.all_to_all(theirs, counts_E.contiguous(), each, each).wait();
  const auto counts = at::stack({counts_E, theirs}).cpu();
  const auto* n = counts.const_data_ptr<int64_t>();
  for (int64_t r = 0; r < ranks; ++r) {
    const auto* mine = n + r * experts;
    sent_.push_back(std::accumulate(mine, mine + experts, int64_t{0}));
    const auto* others = mine + counts_E.size(0);
    received_.push_back(std::accumulate(others, others + experts, int64_t{0}));
  }
  expert_of_row_ = at::arange(experts, theirs.options())
                       .repeat(ranks)
                       .repeat_interleave(theirs, /*dim=*/0, sum(received_))
                       .unsqueeze(1);
  const auto leaving = rows_ND.detach().slice(0, 0, sum(sent_)).contiguous();
  arriving_ = at::empty({sum(received_), rows_ND.size(1)}, rows_ND.options());
  under_way_ = group.all_to_all(arriving_, leaving, received_, sent_);
}

at::Tensor RowExchange::arrive() {
  under_way_.wait();
  return ops::differentiable<Arrive>(rows_, arriving_, group_, sent_, received_);
}

at::Tensor RowExchange::go_back(const at::Tensor& rows) const {
  const auto back = exchange(*group_, rows.detach(), received_, sent_);
  return filled_up(ops::differentiable<Arrive>(rows, back, group_, received_, sent_), rows_.size(0));
}

}  // namespace hero
