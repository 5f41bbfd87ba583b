// Pipeline chunks that exchange activations and routing history give the same hidden states, losses and
// gradients as the whole model. All pipeline ranks run in one process.
#include "model/model_chunk.h"

#include <gtest/gtest.h>

#include <map>

#include "loss/loss.h"
#include "model/history_bytes.h"
#include "model/history_message.h"
#include "ops/autograd.h"
#include "oracle/small_models.h"

namespace model_chunk_test {

struct Case {
  std::string name;
  hero::Config config;
  int64_t ranks = 2;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::vector<Case> cases() {
  std::vector<Case> list;
  for (auto config : {small::qwen(), small::deepseek()}) {
    config.model.num_hidden_layers = 6;
    config.router.balance = hero::BalanceScope::kSequence;
    config.router.balance_loss = 1e-1;
    config.router.z_loss = 1e-2;
    config.router.coupling_loss = 0.1;
    const auto add = [&](const std::string& what, const hero::Config& c, int64_t ranks) {
      list.push_back({name_of(c.model.model_type) + "_" + what, c, ranks});
    };
    add("one_rank", config, 1);
    add("one_stage_over_two_ranks", config, 2);
    auto two = config;
    two.router.stages = 2;
    add("stages", two, 2);
    add("stages_over_four_ranks", two, 4);
    auto global = two;
    global.router.history = hero::HistoryScope::kGlobal;
    add("global", global, 2);
    add("global_six_ranks", global, 6);
    global.router.window = 2;
    add("window", global, 3);
    auto chunks = config;
    chunks.router.history = hero::HistoryScope::kGlobal;
    chunks.parallel.schedule = hero::PipelineSchedule::kInterleaved;
    chunks.parallel.chunks = 2;
    add("interleaved", chunks, 2);
    auto uneven = config;
    uneven.parallel.chunk_sizes = {1, 4, 1};
    add("uneven", uneven, 3);
    auto sparse = config;  // a chunk of dense layers between two MoE layers
    if (config.model.model_type == hero::ModelType::kQwen3Moe) {
      sparse.model.mlp_only_layers = {2, 3};
      add("dense_chunk", sparse, 3);
    } else {
      auto modules = global;
      modules.model.num_nextn_predict_layers = 2;
      add("modules", modules, 3);
      modules.router.kind = "rmoe";
      modules.router.stages = 3;
      add("modules_rmoe", modules, 3);
      chunks.model.num_nextn_predict_layers = 1;
      add("modules_interleaved", chunks, 2);
    }
  }
  return list;
}

class PipelineChunks : public testing::TestWithParam<Case> {};

using Gradients = std::map<std::string, at::Tensor>;

void collect(hero::Transformer& model, Gradients& gradients) {
  for (const auto& p : model.parameters().all()) gradients[p.name] = p.leaf.grad();
}

double relative(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm().clamp_min(1e-300)).item<double>();
}

TEST_P(PipelineChunks, MatchTheWholeModel) {
  auto [name, config, ranks] = GetParam();
  config.parallel.pipeline = ranks;
  const auto tokens = at::arange(2 * 12, at::kLong).view({2, 12}).mul(7).remainder(config.model.vocab_size);
  const auto targets = tokens.flatten().roll(-1);
  const hero::ForwardContext context{.training = true, .seed = 3, .step = 5, .first_token = 640};
  hero::ModuleTargets modules;
  for (int64_t k = 1; k <= config.model.num_nextn_predict_layers; ++k)
    modules.targets_T.push_back(at::where(at::arange(2 * 12) % 12 < 12 - k, targets.roll(-k), -1));

  hero::Transformer whole(config);
  const auto balance = hero::BalanceState::uniform(whole.layout().layers(), config.model.num_experts);
  const auto output = whole.forward(tokens, context);
  const auto loss = hero::compute_losses(whole, output, targets, 12, balance, true, {}, {}, modules);
  loss.total.backward();
  Gradients expected;
  collect(whole, expected);

  std::vector<std::unique_ptr<hero::Transformer>> shards;
  for (int64_t r = 0; r < ranks; ++r)
    shards.push_back(
        std::make_unique<hero::Transformer>(config, at::kCPU, hero::pipeline_shard(config, r, ranks)));
  const int64_t chunks = ranks * config.parallel.chunks;
  const auto& layout = whole.layout();
  std::map<int64_t, at::Tensor> messages;
  std::vector<at::Tensor> inputs, outputs, totals, masses_in, masses_out;
  at::Tensor x = tokens, mass, embedded, received;  // received: the last chunk's copy of the embedded tokens
  double total = 0, coupling = 0;
  for (int64_t c = 0; c < chunks; ++c) {
    auto& model = *shards[c % ranks];
    const auto local_chunk = static_cast<size_t>(c / ranks);
    const auto& chunk = model.shard().chunks.at(local_chunk);
    ASSERT_EQ(chunk.index, c);
    const auto history = model.new_history(chunk, tokens.numel());
    for (const int64_t l : layout.needed_from(chunk.first_moe)) {
      history->store(l, hero::unpack_history(messages.at(l), layout.width(), 0, at::kDouble));
    }
    if (!chunk.is_first) x = x.detach().clone().set_requires_grad(true);
    if (mass.defined()) mass = mass.detach().clone().set_requires_grad(true);
    inputs.push_back(x);
    masses_in.push_back(mass);
    if (chunk.is_last && embedded.defined()) received = embedded.detach().clone().set_requires_grad(true);
    const auto out = model.run_chunk(local_chunk, {x, received}, history, context, /*recompute=*/c % 2 == 1,
                                     [&](int64_t l) {
                                       if (const auto slot = history->slot(l); slot.probs.defined())
                                         messages[l] = hero::pack_history(slot.probs, 0);
                                     });
    EXPECT_EQ(out.embedded.defined(), chunk.is_first && !chunk.is_last && !modules.targets_T.empty());
    if (out.embedded.defined()) embedded = out.embedded;
    for (const auto& routing : out.routings)
      EXPECT_TRUE(routing.logits.equal(output.routings[routing.layer - 1].logits)) << routing.layer;
    x = out.hidden_TD;
    const auto chunk_losses =
        hero::compute_losses(model, out, targets, 12, balance, chunk.is_last, mass, {}, modules);
    mass = chunk_losses.mass_T;
    coupling += chunk_losses.coupling.item<double>();
    outputs.push_back(x);
    masses_out.push_back(mass);
    totals.push_back(chunk_losses.total);
    if (chunk_losses.total.defined()) total += chunk_losses.total.item<double>();
  }
  EXPECT_TRUE(x.equal(output.hidden_TD));
  EXPECT_NEAR(total, loss.total.item<double>(), 1e-13 * std::abs(total));
  EXPECT_NEAR(coupling, loss.coupling.item<double>(), 1e-14);

  at::Tensor gradient, mass_gradient;
  for (int64_t c = chunks - 1; c >= 0; --c) {
    std::vector<at::Tensor> roots, given;
    if (totals[c].defined()) roots.push_back(totals[c]), given.emplace_back();
    if (gradient.defined()) roots.push_back(outputs[c]), given.push_back(gradient);
    if (mass_gradient.defined()) roots.push_back(masses_out[c]), given.push_back(mass_gradient);
    if (c == 0 && embedded.defined()) roots.push_back(embedded), given.push_back(received.grad());
    hero::ops::backward(roots, given);
    gradient = c > 0 ? inputs[c].grad() : at::Tensor();
    mass_gradient = masses_in[c].defined() ? masses_in[c].grad() : at::Tensor();
  }
  Gradients found;
  for (auto& shard : shards) collect(*shard, found);
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [parameter, wanted] : expected)
    EXPECT_LT(relative(found.at(parameter), wanted), 1e-12) << parameter;
}

INSTANTIATE_TEST_SUITE_P(Layouts, PipelineChunks, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST(ModelShard, ExpertsMatchTheWholeModel) {
  const auto config = small::qwen();
  const hero::Transformer whole(config);
  std::map<std::string, at::Tensor> values;
  for (const auto& [name, tensor] : whole.parameters().state_dict()) values[name] = tensor;
  auto shard = hero::whole_model(config);
  shard.first_expert = 6;
  shard.experts = 2;
  const hero::Transformer sharded(config, at::kCPU, shard);
  int64_t experts = 0;
  for (const auto& [name, tensor] : sharded.parameters().state_dict()) {
    EXPECT_TRUE(tensor.equal(values.at(name))) << name;
    experts += name.find(".experts.") != std::string::npos;
  }
  EXPECT_EQ(experts, config.model.num_hidden_layers * 2 * 3);
  for (const auto& p : sharded.parameters().all())
    EXPECT_EQ(p.expert, p.name.find(".experts.") != std::string::npos) << p.name;
}

TEST(ModelShard, HistoryHasTheSlotsThatAChunkReadsAndWrites) {
  auto config = small::qwen();
  config.router.history = hero::HistoryScope::kGlobal;
  const hero::Transformer model(config, at::kCPU, hero::pipeline_shard(config, 1, 2));
  const auto history = model.new_history(model.shard().chunks[0], 10);
  // Layers 1 and 2 are received, 3 is written here, no layer reads 4. A slot and its sums of squares in fp64.
  EXPECT_EQ(hero::test::history_bytes(*history, 4), 3 * 10 * (8 + 1) * 8);
  const auto first = hero::pipeline_shard(config, 0, 2);
  EXPECT_EQ(model.layout().needed_from(first.chunks[0].last_moe), (std::vector<int64_t>{1, 2}));
  config.router.window = 1;
  const hero::HistoryLayout window(4, 8, config.router);
  EXPECT_EQ(window.needed_from(3), (std::vector<int64_t>{2}));
}

TEST(HistoryMessage, AllProbabilitiesOrTopK) {
  for (const auto type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const auto probs = small::normal({5, 8}, 3).mul(3).softmax(1).to(type);
    const auto whole = hero::pack_history(probs, 0);
    EXPECT_EQ(whole.size(1), hero::history_message_width(8, 0, type));
    EXPECT_TRUE(hero::unpack_history(whole, 8, 0, type).equal(probs));

    const auto message = hero::pack_history(probs, 3);
    EXPECT_EQ(message.size(1), hero::history_message_width(8, 3, type));
    EXPECT_EQ(message.size(1), 3 * (static_cast<int64_t>(c10::elementSize(type)) + 2));
    const auto truncated = hero::unpack_history(message, 8, 3, type);
    const auto order = probs.argsort(/*stable=*/true, 1, /*descending=*/true);
    const auto best = order.slice(1, 0, 3), others = order.slice(1, 3);
    EXPECT_TRUE(truncated.gather(1, best).equal(probs.gather(1, best)));
    const auto rest = (1 - probs.to(at::kDouble).gather(1, best).sum(1, true)) / 5;
    EXPECT_LT((truncated.to(at::kDouble).gather(1, others) - rest).abs().max().item<double>(),
              type == at::kBFloat16 ? 1e-3 : 1e-7);
    EXPECT_LT((truncated.to(at::kDouble).sum(1) - 1).abs().max().item<double>(),
              type == at::kBFloat16 ? 5e-3 : 1e-6);
  }
}

}  // namespace model_chunk_test
