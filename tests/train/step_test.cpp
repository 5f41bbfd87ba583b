// GPU requirements of a training step, tested without a GPU: no tensor value is read on the host, and every
// tensor is on the model's device. One test records the operators of a step on the CPU. Others run on the
// meta device, where reading a value or mixing in a CPU tensor throws.
#include "train/step.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <functional>
#include <set>

#include "oracle/small_models.h"

namespace hero {
namespace step_test {

// Meta kernels for operators that have only CPU and CUDA kernels.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> plan_shapes(const at::Tensor& ids,
                                                                       int64_t experts) {
  return {at::empty({experts}, ids.options()), at::empty({experts + 1}, ids.options()),
          at::empty({ids.numel()}, ids.options()), at::empty_like(ids)};
}
at::Tensor index_select_shape(const at::Tensor& x, int64_t dim, const at::Tensor& index) {
  auto sizes = x.sizes().vec();
  sizes[dim] = index.numel();
  return at::empty(sizes, x.options());
}
at::Tensor where_shape(const at::Tensor& condition, const at::Tensor& a, const at::Tensor& b) {
  return at::empty_like(a + b).masked_fill(condition, 0);
}
at::Tensor& where_out_shape(const at::Tensor& condition, const at::Tensor& a, const at::Tensor& b,
                            at::Tensor& out) {
  return out.copy_(where_shape(condition, a, b));
}
at::Tensor& same_shape_out(const at::Tensor& x, at::Tensor& out) {
  out.resize_(x.sizes());
  return out;
}
at::Tensor variance_shape(const at::Tensor& x, at::OptionalIntArrayRef dim, const std::optional<at::Scalar>&,
                          bool keepdim) {
  return x.sum(dim, keepdim);
}
at::Tensor embedding_gradient_shape(const at::Tensor& dy, const at::Tensor& ids, c10::SymInt rows,
                                    c10::SymInt padding, bool) {
  const auto none = std::move(padding);
  TORCH_CHECK(ids.is_meta() && none == -1);
  return at::empty_symint({std::move(rows), dy.size(-1)}, dy.options());
}
void no_update(at::TensorList values, at::TensorList gradients, at::TensorList, at::TensorList,
               at::TensorList, at::TensorList steps, double, double, double, double, double, bool, bool,
               const std::optional<at::Tensor>& divisor, const std::optional<at::Tensor>& skip) {
  TORCH_CHECK(steps[0].is_meta() && values[0].is_meta() && gradients[0].is_meta());
  TORCH_CHECK(!divisor || divisor->is_meta());
  TORCH_CHECK(skip && skip->is_meta(), "non-finite gradients must be detected on the device");
}
TORCH_LIBRARY_IMPL(hero, Meta, m) { m.impl("plan_assignments", plan_shapes); }
TORCH_LIBRARY_IMPL(aten, Meta, m) {
  m.impl("index_select", index_select_shape);
  m.impl("where.self", where_shape);
  m.impl("where.self_out", where_out_shape);
  m.impl("var.correction", variance_shape);
  m.impl("abs.out", same_shape_out);
  m.impl("logical_not.out", same_shape_out);
  m.impl("embedding_dense_backward", embedding_gradient_shape);
  m.impl("_fused_adamw_", no_update);
}

struct Case {
  std::string name;
  std::function<void(Config&)> change;
  bool deepseek = false;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::vector<Case> cases() {
  return {
      {"qwen", [](Config&) {}},
      {"bf16", [](Config& c) { c = small::fused(c); }},
      {"baseline", [](Config& c) { c.router.kind = "baseline"; }},
      {"sequence_balance", [](Config& c) { c.router.balance = BalanceScope::kSequence; }},
      {"global_balance", [](Config& c) { c.router.balance = BalanceScope::kGlobal; }},
      {"pooled_balance", [](Config& c) { c.router.balance = BalanceScope::kPooled; }},
      {"z_and_coupling",
       [](Config& c) {
         c.router.z_loss = 0.1;
         c.router.coupling_loss = 0.1;
       }},
      {"capacity_by_probability", [](Config& c) { c.router.capacity_factor = 1.0; }},
      {"capacity_by_position",
       [](Config& c) {
         c.router.capacity_factor = 1.0;
         c.router.drop_policy = DropPolicy::kPosition;
       }},
      {"jitter", [](Config& c) { c.router.jitter = 0.1; }},
      {"forced_balance", [](Config& c) { c.router.force_balance = true; }},
      {"live_history", [](Config& c) { c.router.detach = false; }},
      {"recompute", [](Config& c) { c.train.recompute = true; }},
      {"documents",
       [](Config& c) {
         c.train.document_mask = true;
         c.train.document_positions = true;
       }},
      {"muon",
       [](Config& c) {
         c.optim.kind = OptimKind::kMuon;
         c.optim.muon_router = true;
       }},
      {"routers_alone", [](Config& c) { c.train.trainable = Trainable::kRouters; }},
      {"yarn", [](Config& c) { c.model.rope_scaling.type = RopeType::kYarn; }},
      {"deepseek", [](Config&) {}, true},
      {"deepseek_groups_bias_shared",
       [](Config& c) {
         c.model.scoring_func = ScoringFunc::kSigmoid;
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
    const auto position = at::arange(kLength).expand({2, kLength});
    step.micro_batch(small::tokens(2, kLength + 1, model.config().model.vocab_size, seed),
                     {.training = true, .starts_BS = position.div(5, "floor") * 5});
  }

  Transformer model;
  Optimizer optimizer;
  BalanceState balance;
  TrainStep step;
};

// Operators called on this thread, except those within hero:: kernels, which depend on the device.
std::set<std::string> called;
int hero_depth = 0;
bool always_deterministic = true;

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& f) {
  const std::string name = f.name();
  always_deterministic &= at::globalContext().deterministicAlgorithms();
  if (hero_depth == 0) called.insert(name);
  if (name.starts_with("hero::")) ++hero_depth;
  return nullptr;
}
void leave(const at::RecordFunction& f, at::ObserverContext*) {
  if (std::string(f.name()).starts_with("hero::")) --hero_depth;
}

class StepTest : public testing::TestWithParam<Case> {};

TEST_P(StepTest, MicroBatchDoesNotSynchronize) {
  Training training(configured(GetParam()));
  training.step.begin();
  called.clear();
  always_deterministic = true;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(enter, leave).scopes({at::RecordScope::FUNCTION}));
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  training.micro_batch(1);
  EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  at::globalContext().setDeterministicAlgorithms(false, false);
  at::removeCallback(handle);
  EXPECT_TRUE(always_deterministic) << "an operator changed the global setting";
  EXPECT_TRUE(called.count("hero::plan_assignments"));
  EXPECT_TRUE(called.count("hero::expert_weights_backward"));
  // The global balance loss uses the counts of the previous step.
  EXPECT_EQ(called.count("hero::count_assignments"), GetParam().name != "global_balance");
  for (const char* reads : {"item", "_local_scalar_dense", "nonzero", "is_nonzero", "masked_select",
                            "bincount", "equal", "_unique2", "unique_dim"}) {
    EXPECT_FALSE(called.count(std::string("aten::") + reads)) << reads;
  }
  // On CUDA the deterministic versions of these sort and synchronize.
  for (const char* waits : {"scatter_", "scatter_add", "scatter_add_", "index_copy_", "index_put_",
                            "_index_put_impl_", "index_add_"}) {
    EXPECT_FALSE(called.count(std::string("aten::") + waits)) << waits;
  }
}

TEST_P(StepTest, RunsOnTheMetaDevice) {
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

// Generation: prefill, then a decoding step of two sequences with KV caches.
TEST_P(StepTest, ExtendsSequencesOnTheMetaDevice) {
  const Config config = configured(GetParam());
  const Transformer model(config, at::kMeta);
  const auto ids = [](int64_t n) { return at::zeros({n}, at::TensorOptions(at::kMeta).dtype(at::kLong)); };
  KeyValueCache a, b;
  Transformer::ExtensionBuffers buffers;
  EXPECT_EQ(model.extend(ids(5), {&a}, {5}, buffers).sizes(), at::IntArrayRef({5, config.model.hidden_size}));
  model.extend(ids(3), {&b}, {3}, buffers);
  const auto hidden = model.extend(ids(2), {&a, &b}, {1, 1}, buffers);
  EXPECT_TRUE(hidden.is_meta());
  EXPECT_EQ(model.logits(hidden, 1).sizes(), at::IntArrayRef({1, 2, config.model.vocab_size}));
  EXPECT_EQ(a.length, 6);
}

TEST(Step, MetaDeviceRejectsReads) {
  const auto without = at::ones({2}, at::kMeta);
  EXPECT_THROW(without.sum().item<double>(), c10::Error);
  EXPECT_THROW(without.cpu(), c10::Error);
  EXPECT_THROW(without * at::ones({2}), c10::Error);
}

// Losses are means over micro-batches; counts are sums over the step.
TEST(Step, AccumulatesMicroBatches) {
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

// A step that ended between micro-batches leaves no trace in the next one.
TEST(Step, StopsBetweenMicroBatches) {
  auto config = small::qwen();
  config.train.micro_batch = 2;
  config.train.global_batch = 4;
  Training stopped(config), whole(config);
  const auto read = [&](int64_t i) {
    return MicroBatch{small::tokens(2, kLength + 1, config.model.vocab_size, static_cast<uint64_t>(i)),
                      {.training = true}};
  };
  stopped.step.begin();
  EXPECT_FALSE(stopped.step.run(2, read, [] { return true; }));
  for (Training* training : {&stopped, &whole}) {
    training->step.begin();
    EXPECT_TRUE(training->step.run(2, read));
    training->step.update(1, 1e-3);
  }
  EXPECT_EQ(stopped.step.read().loss, whole.step.read().loss);
  const auto& expected = whole.model.parameters().all();
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(stopped.model.parameters().all()[i].values.equal(expected[i].values)) << expected[i].name;
}

// router.balance = "global": E * sum_e f_e P_e per layer, with the shares f of the previous step's global
// batch (1/E in the first step) and P of the micro-batch; the metric is the mean over layers and
// micro-batches.
TEST(Step, GlobalBalanceUsesTheSharesOfThePreviousStep) {
  auto config = small::qwen();
  config.router.balance = BalanceScope::kGlobal;
  config.router.balance_loss = 0.1;
  config.train.micro_batch = 2;
  config.train.global_batch = 4;
  Training training(config);
  auto shares = at::full({4, 8}, 1.0 / 8, at::kDouble);
  for (uint64_t step = 1; step <= 3; ++step) {
    double want = 0;
    auto counts = at::zeros({4, 8}, at::kDouble);
    for (const uint64_t micro : {0, 1}) {
      const at::NoGradGuard no_grad;
      const auto tokens = small::tokens(2, kLength + 1, config.model.vocab_size, 2 * step + micro);
      const auto output =
          training.model.forward(tokens.slice(1, 0, kLength).contiguous(), {.training = true});
      for (const auto& r : output.routings) {
        want += 8 * (shares[r.layer - 1] * r.probs.mean(0)).sum().item<double>() / (4 * 2);
        for (int64_t e = 0; e < 8; ++e) counts[r.layer - 1][e] += r.ids.eq(e).sum();
      }
    }
    training.step.begin();
    for (const uint64_t micro : {0, 1}) training.micro_batch(2 * step + micro);
    const double got = training.step.read().balance;
    EXPECT_NEAR(got, want, 1e-12) << step;
    EXPECT_EQ(std::abs(got - 1) < 1e-12, step == 1) << got;  // uniform shares: sum_e P_e = 1
    EXPECT_NEAR(training.step.read().loss - training.step.read().lm, 0.1 * 4 * want, 1e-12) << step;
    training.step.update(static_cast<int64_t>(step), 1e-2);
    shares = counts / counts.sum(1, true);
    EXPECT_TRUE(training.balance.shares_LE.equal(shares)) << step;
  }
}

// router.init = "zero" starts as the baseline: bitwise identical loss and gradients of all shared weights.
TEST(Step, ZeroInitMatchesTheBaselineExactly) {
  for (const bool deepseek : {false, true}) {
    for (const bool recompute : {false, true}) {
      auto config = small::fused(deepseek ? small::deepseek() : small::qwen());
      config.train.dtype = Dtype::kFp32;
      config.train.recompute = recompute;
      config.router.z_loss = 1e-3;
      config.router.stages = 2;
      auto zero_config = config;
      zero_config.router.kind = "hero", zero_config.router.init = RouterInit::kZero;
      config.router.kind = "baseline";
      Training baseline(config), zero(zero_config);
      for (auto* training : {&baseline, &zero}) {
        training->step.begin();
        training->micro_batch(1);
        training->micro_batch(2);
      }
      EXPECT_EQ(baseline.step.read().loss, zero.step.read().loss);
      EXPECT_EQ(baseline.step.read().lm, zero.step.read().lm);
      const auto &shared = baseline.model.parameters().all(), &all = zero.model.parameters().all();
      ASSERT_EQ(shared.size(), all.size());
      double history = 0;
      for (size_t i = 0; i < all.size(); ++i) {
        ASSERT_EQ(shared[i].name, all[i].name);
        const auto want = shared[i].leaf.grad(), got = all[i].leaf.grad();
        const bool router = want.sizes() != got.sizes();
        EXPECT_TRUE((router ? got.slice(1, 0, want.size(1)) : got).equal(want)) << all[i].name;
        if (router) history += got.slice(1, want.size(1)).abs().sum().item<double>();
      }
      EXPECT_GT(history, 0);  // W_R receives gradients from the first step on
    }
  }
}

TEST(Step, NonFiniteGradientChangesNoWeight) {
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

}  // namespace step_test
}  // namespace hero
