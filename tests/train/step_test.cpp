// What a training step asks of a GPU, seen without one: no value of a tensor is read on the host within it,
// and every tensor lies on the model's device. A step on the CPU is watched operator by operator; then it
// runs on the device "meta", whose tensors hold no values: reading one, or mixing in a tensor of the CPU,
// throws.
#include "train/step.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <set>

#include "oracle/small_models.h"

namespace hero {
namespace {

// Kernels that LibTorch or we have for CPU and CUDA only.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> plan_shapes(const at::Tensor& ids,
                                                                       int64_t experts) {
  return {at::empty({experts}, ids.options()), at::empty({experts + 1}, ids.options()),
          at::empty({ids.numel()}, ids.options()), at::empty_like(ids)};
}
TORCH_LIBRARY_IMPL(hero, Meta, m) { m.impl("plan_assignments", plan_shapes); }

struct Case {
  std::string name;
  std::function<void(Config&)> change;
  bool deepseek = false;
};

std::vector<Case> cases() {
  return {
      {"qwen", [](Config&) {}},
      {"bf16", [](Config& c) { c = small::fused(c); }},
      {"baseline", [](Config& c) { c.router.kind = "baseline"; }},
      {"sequence_balance", [](Config& c) { c.router.balance = "sequence"; }},
      {"global_balance", [](Config& c) { c.router.balance = "global"; }},
      {"pooled_balance", [](Config& c) { c.router.balance = "pooled"; }},
      {"z_and_coupling",
       [](Config& c) {
         c.router.z_loss = 0.1;
         c.router.coupling_loss = 0.1;
       }},
      {"capacity_by_probability", [](Config& c) { c.router.capacity_factor = 1.0; }},
      {"capacity_by_position",
       [](Config& c) {
         c.router.capacity_factor = 1.0;
         c.router.drop_policy = "position";
       }},
      {"jitter", [](Config& c) { c.router.jitter = 0.1; }},
      {"forced_balance", [](Config& c) { c.router.force_balance = true; }},
      {"live_history", [](Config& c) { c.router.detach = false; }},
      {"recompute", [](Config& c) { c.train.recompute = true; }},
      {"routers_alone", [](Config& c) { c.train.trainable = "routers"; }},
      {"yarn", [](Config& c) { c.model.rope_scaling.type = "yarn"; }},
      {"deepseek", [](Config&) {}, true},
      {"deepseek_groups_bias_shared",
       [](Config& c) {
         c.model.scoring_func = "sigmoid";
         c.model.n_group = 4;
         c.model.topk_group = 2;
         c.model.n_shared_experts = 1;
         c.model.q_lora_rank = 5;
         c.router.bias_update_rate = 0.01;
       },
       true},
  };
}

constexpr int64_t kLength = 12;

Config configured(const Case& c) {
  Config config = c.deepseek ? small::deepseek() : small::qwen();
  config.train.micro_batch = 2;
  config.train.global_batch = 4;
  c.change(config);
  return config;
}

struct Training {
  explicit Training(const Config& config, at::Device device = at::kCPU)
      : model(config, device),
        optimizer(model.parameters(), config.optim),
        balance(BalanceState::uniform(model.layout().layers(), model.layout().experts(), device)),
        step(model, optimizer, balance) {}

  void micro_batch(uint64_t seed) {
    step.micro_batch(small::tokens(2, kLength + 1, model.config().model.vocab_size, seed),
                     {.training = true});
  }

  Transformer model;
  AdamW optimizer;
  BalanceState balance;
  TrainStep step;
};

// Operators called on this thread, those within a kernel of ours aside: they are that kernel's on this
// device.
std::set<std::string> called;
int within_ours = 0;

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& f) {
  const std::string name = f.name();
  if (within_ours == 0) called.insert(name);
  if (name.starts_with("hero::")) ++within_ours;
  return nullptr;
}
void leave(const at::RecordFunction& f, at::ObserverContext*) {
  if (std::string(f.name()).starts_with("hero::")) --within_ours;
}

class StepTest : public testing::TestWithParam<Case> {};

TEST_P(StepTest, AMicroBatchReadsNoValueOnTheHost) {
  Training training(configured(GetParam()));
  training.step.begin();
  called.clear();
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(enter, leave).scopes({at::RecordScope::FUNCTION}));
  training.micro_batch(1);
  at::removeCallback(handle);
  EXPECT_TRUE(called.count("hero::plan_assignments"));
  EXPECT_TRUE(called.count("aten::topk"));
  for (const char* reads : {"aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero",
                            "aten::masked_select", "aten::bincount", "aten::equal", "aten::unique_dim"}) {
    EXPECT_FALSE(called.count(reads)) << reads;
  }
}

TEST_P(StepTest, RunsOnADeviceWithoutValues) {
  Training training(configured(GetParam()), at::kMeta);
  for (int64_t step = 1; step <= 2; ++step) {
    training.step.begin();
    training.micro_batch(1);
    training.micro_batch(2);
    training.step.update(step, 1e-3);
  }
  for (const auto& p : training.model.parameters().all()) {
    EXPECT_TRUE(p.values.is_meta() && p.leaf.is_meta()) << p.name;
    EXPECT_EQ(p.leaf.grad().defined(), p.leaf.requires_grad()) << p.name;
  }
  for (const auto& [name, buffer] : training.model.parameters().buffers())
    EXPECT_TRUE(buffer.is_meta()) << name;
}

INSTANTIATE_TEST_SUITE_P(, StepTest, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

// Means over micro-batches, and the whole step's counts.
TEST(Step, SumsAreThoseOfItsMicroBatches) {
  auto config = small::qwen();
  config.train.micro_batch = 2;
  config.train.global_batch = 4;
  Training both(config), one(config);
  both.step.begin();
  both.micro_batch(1);
  both.micro_batch(2);
  both.step.update(1, 1e-3);
  const auto sums = both.step.read();
  double lm = 0, loss = 0;
  at::Tensor assigned = at::zeros({4, 8}, at::kDouble);
  for (const uint64_t seed : {1, 2}) {
    one.step.begin();
    one.micro_batch(seed);
    const auto part = one.step.read();
    lm += part.lm;
    loss += part.loss;
    assigned += part.layers.assigned_LE();
  }
  EXPECT_NEAR(sums.lm, lm, 1e-12);
  EXPECT_NEAR(sums.loss, loss, 1e-12);
  EXPECT_GT(sums.loss, sums.lm);
  EXPECT_TRUE(sums.layers.assigned_LE().equal(assigned));
  EXPECT_EQ(assigned.sum().item<double>(), 4 * 2 * 2 * kLength * 3);
  EXPECT_TRUE(both.balance.shares_LE.equal(assigned / assigned.sum(1, true)));
}

TEST(Step, ANonFiniteGradientChangesNoWeight) {
  Training training(small::qwen());
  std::vector<at::Tensor> before;
  for (const auto& p : training.model.parameters().all()) before.push_back(p.values.clone());
  training.step.begin();
  training.micro_batch(1);
  auto& broken = training.model.parameters().all()[3];
  broken.leaf.mutable_grad().fill_(NAN);
  training.step.update(1, 1e-3);
  EXPECT_FALSE(std::isfinite(training.step.read().gradient_norm));
  EXPECT_EQ(training.optimizer.non_finite_gradient(), broken.name);
  for (size_t i = 0; i < before.size(); ++i)
    EXPECT_TRUE(training.model.parameters().all()[i].values.equal(before[i])) << i;
}

}  // namespace
}  // namespace hero
