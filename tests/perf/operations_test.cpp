// FLOPs by `hero cost` against the sizes of the operators that a forward and backward pass calls.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include "loss/loss.h"
#include "model/counts.h"
#include "model/transformer.h"
#include "perf/memory.h"
#include "perf/random_configs.h"

namespace hero {
namespace operations_test {

double product(const at::Tensor& x, const at::Tensor& w) {  // x W^T for each row of x
  return 2 * to_double(x.size(0)) * to_double(w.numel());
}

// Rows of x times the widths of both operands.
double outer_product(const at::Tensor& dy, const at::Tensor& x) {
  return 2 * to_double(dy.size(0)) * to_double(dy.size(1) * x.size(1));
}

double visible_columns(const c10::IValue& history) {
  return history.isTensor() && history.toTensor().defined() ? to_double(history.toTensor().size(1)) : 0;
}

// A query attends to (S + 1) / 2 keys on average.
double attention(const at::Tensor& q, const at::Tensor& v, int64_t length) {
  return to_double(q.numel()) / to_double(q.size(-1)) * to_double(length + 1) *
         to_double(q.size(-1) + v.size(-1));
}

double experts_product(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down) {
  return to_double(2 * x.size(0) * x.size(1)) * to_double(gate_up.size(1) + down.size(2));
}

// FLOPs of a call of one of the project's operators with products.
double flops_of(const std::string& name, c10::ArrayRef<const c10::IValue> in, int64_t length) {
  const auto t = [&](size_t i) { return in[i].toTensor(); };
  if (name == "hero::linear_forward" || name == "hero::linear_backward_input") return product(t(0), t(1));
  if (name == "hero::linear_backward_weight") return outer_product(t(0), t(1));
  if (name == "hero::attention_forward") return attention(t(0), t(2), length);
  if (name == "hero::attention_backward") return 2 * attention(t(1), t(3), length);
  if (name == "hero::route_forward") return product(t(0), t(1));
  if (name == "hero::route_backward_input") return outer_product(t(0), t(3));
  if (name == "hero::route_backward_weight")
    return to_double(2 * t(0).size(1) * t(0).size(2)) * (to_double(t(1).size(1)) + visible_columns(in[2]));
  if (name == "hero::experts_forward") return experts_product(t(0), t(1), t(2));
  if (name == "hero::experts_backward_input") return experts_product(t(0), t(2), t(3));
  if (name == "hero::experts_backward") return 2 * experts_product(t(0), t(3), t(4));
  if (name == "hero::experts_backward_weight") return outer_product(t(0), t(1));
  if (name == "hero::linear_cross_entropy_forward")
    return product(t(0), t(1)) * (1 + in[3].toBool() + in[4].toBool());
  return 0;
}

int64_t sequence_length = 0;
double counted = 0;

std::unique_ptr<at::ObserverContext> on_call(const at::RecordFunction& function) {
  counted += flops_of(function.name(), function.inputs(), sequence_length);
  return nullptr;
}

double counted_flops(const Config& config) {
  const int64_t batch = config.train.micro_batch, length = config.train.sequence;
  const Transformer model(config);
  const auto samples = at::arange(batch * (length + 1), at::kLong)
                           .mul(7)
                           .remainder(config.model.vocab_size)
                           .view({batch, length + 1});
  const auto inputs = samples.slice(1, 0, length).contiguous(), targets = samples.slice(1, 1).flatten();
  ModuleTargets modules;
  for (int64_t k = 1; k <= config.model.num_nextn_predict_layers; ++k)
    modules.targets_T.push_back(mtp_targets(samples, k, {}));
  sequence_length = length;
  counted = 0;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(on_call).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  const auto output = model.forward(inputs, {.training = true}, config.train.recompute);
  compute_losses(model, output, targets, length,
                 BalanceState::uniform(model.layout().layers(), model.layout().experts()),
                 /*is_last_chunk=*/true, {}, {}, modules)
      .total.backward();
  at::removeCallback(handle);
  return counted;
}

double expected_flops(const Config& config) {
  const auto tokens = to_double(config.train.micro_batch * config.train.sequence);
  double flops = training_flops_per_token(config);
  if (!config.train.recompute) return tokens * flops;
  const auto visible = visible_counts(config);
  for (int64_t i = 0; i < std::ssize(visible); ++i) {
    if (recomputed_layer_bytes(config, i, tokens) == 0) continue;
    for (const CostItem& item : layer_costs(config, i, visible[i])) flops += item.forward;
  }
  return tokens * flops;
}

TEST(Operations, EqualThoseOfTheOperators) {
  test::Draw draw(test::random_case_seed());
  for (uint64_t i = 4 * test::random_case_count(); i > 0; --i) {
    Config config = perf_test::random_config(draw);
    // A GRU and gradients through the history consist of PyTorch's operators.
    if (config.router.kind == "rmoe") config.router.kind = "hero";
    config.router.detach = true;
    EXPECT_DOUBLE_EQ(counted_flops(config), expected_flops(config)) << perf_test::flags_of(config);
  }
}

TEST(Operations, FrozenWeights) {
  for (const int64_t dense : {0, 2}) {
    Config config;
    config.model.model_type = ModelType::kDeepseekV3;
    config.model.vocab_size = 128;
    config.model.num_hidden_layers = 4;
    config.model.first_k_dense_replace = dense;
    config.train.sequence = 32;
    const double all = counted_flops(config);
    config.train.trainable = Trainable::kRouters;
    const double frozen = counted_flops(config);
    EXPECT_LT(frozen, 0.7 * all);
    EXPECT_DOUBLE_EQ(frozen, expected_flops(config));
  }
}

}  // namespace operations_test
}  // namespace hero
