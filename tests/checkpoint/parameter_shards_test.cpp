// Checkpoints written in one parallel layout and read in another, with shard boundaries at arbitrary
// elements.
#include "checkpoint/parameter_shards.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/manifest.h"
#include "checkpoint/ranks.h"
#include "checkpoint/training_state.h"
#include "hf/load.h"
#include "hf/temporary_folder.h"
#include "io/error.h"
#include "optim/optimizer.h"
#include "oracle/small_models.h"

namespace hero {
namespace parameter_shards_test {

using test::run_ranks;
using test::TemporaryFolder;

Parameters example_parameters() {
  Parameters parameters(at::kFloat, /*seed=*/5);
  const auto part = [](const std::string& name, std::vector<int64_t> shape) {
    return ParameterPart{.name = name, .shape = std::move(shape), .init = normal_init(1.0)};
  };
  parameters.add("embedding", {11, 3}, normal_init(1.0), true);
  parameters.add("qkv", {10, 3}, {part("q", {4, 3}), part("k", {3, 3}), part("v", {3, 3})}, true);
  parameters.add("norm", {7}, constant_init(1.0), false);
  parameters.add("experts", {3, 2, 5}, {part("e.0", {2, 5}), part("e.1", {2, 5}), part("e.2", {2, 5})}, true);
  parameters.add("frozen", {4, 2}, normal_init(1.0), true);
  parameters.freeze_unless([](const std::string& name) { return name != "frozen"; });
  return parameters;
}

// Test values of a moment for a range of elements.
at::Tensor moment(size_t parameter, int64_t begin, int64_t end, double offset) {
  return (at::arange(begin, end, at::kFloat) + (static_cast<double>(parameter) * 1000 + offset)) / 7;
}

// The concatenated parameters, split into `count` shards; the boundaries depend on `variant`.
std::vector<std::vector<ParameterShard>> split(const Parameters& parameters, int64_t count, int64_t variant) {
  int64_t total = 0;
  for (const auto& parameter : parameters.all()) total += parameter.leaf.numel();
  std::vector<std::vector<ParameterShard>> ranks(static_cast<size_t>(count));
  for (int64_t r = 0; r < count; ++r) {
    const auto bound = [&](int64_t i) {
      return i == 0 || i == count ? i / count * total : std::min(total, total * i / count + variant * 3 + i);
    };
    int64_t first = 0;
    for (size_t p = 0; p < parameters.all().size(); ++p) {
      const auto& parameter = parameters.all()[p];
      const int64_t size = parameter.values.numel();
      const int64_t begin = std::max<int64_t>(bound(r) - first, 0),
                    end = std::min(bound(r + 1) - first, size);
      first += size;
      if (begin >= end) continue;
      const bool trainable = parameter.leaf.requires_grad();
      ranks[static_cast<size_t>(r)].push_back({p, begin, end,
                                               parameter.values.view({-1}).slice(0, begin, end).clone(),
                                               trainable ? moment(p, begin, end, 0.25) : at::Tensor(),
                                               trainable ? moment(p, begin, end, 0.5) : at::Tensor()});
    }
  }
  return ranks;
}

void clear(std::vector<ParameterShard>& shards) {
  for (auto& shard : shards) {
    shard.values.fill_(-1);
    if (!shard.exp_avg.defined()) continue;
    shard.exp_avg.fill_(-1);
    shard.exp_avg_sq.fill_(-1);
  }
}

std::filesystem::path save(const std::filesystem::path& run, const Parameters& parameters,
                           const std::vector<std::vector<ParameterShard>>& ranks) {
  test::InMemoryStore store;
  const auto size = static_cast<int64_t>(ranks.size());
  const auto errors = run_ranks(size, [&](int64_t rank) {
    CheckpointContents contents;
    add_parameter_shards(parameters, ranks[static_cast<size_t>(rank)], contents);
    CheckpointWriter(store.client(rank, size), run, 0).save(1, contents, /*wait=*/true);
  });
  EXPECT_EQ(errors, std::vector<std::string>(ranks.size()));
  return checkpoint_folder(run, 1);
}

void expect_equal(const std::vector<ParameterShard>& found, const std::vector<ParameterShard>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::equal(found[i].values, expected[i].values)) << "shard " << i;
    if (!expected[i].exp_avg.defined()) continue;
    EXPECT_TRUE(at::equal(found[i].exp_avg, expected[i].exp_avg)) << "shard " << i;
    EXPECT_TRUE(at::equal(found[i].exp_avg_sq, expected[i].exp_avg_sq)) << "shard " << i;
  }
}

class ParameterShards : public testing::TestWithParam<int64_t> {};

TEST_P(ParameterShards, LoadsInEveryLayout) {
  const auto parameters = example_parameters();
  for (int64_t variant = 0; variant < 4; ++variant) {
    const TemporaryFolder run;
    const auto folder = save(run.path(), parameters, split(parameters, GetParam(), variant));
    EXPECT_EQ(find_corruption(folder), std::nullopt);
    for (int64_t readers = 1; readers <= 4; ++readers) {
      SCOPED_TRACE(std::to_string(GetParam()) + " to " + std::to_string(readers) + ", boundaries " +
                   std::to_string(variant));
      const auto expected = split(parameters, readers, variant + 1);
      auto found = split(parameters, readers, variant + 1);
      for (size_t r = 0; r < found.size(); ++r) {
        clear(found[r]);
        read_parameter_shards(folder, parameters, found[r]);
        expect_equal(found[r], expected[r]);
      }
    }
  }
}

TEST_P(ParameterShards, SavedModelIsComplete) {
  const auto parameters = example_parameters();
  const TemporaryFolder run;
  const auto folder = save(run.path(), parameters, split(parameters, GetParam(), 1));
  const ShardedReader reader(folder, "model");
  std::vector<std::string> names;
  for (const auto& [name, values] : parameters.state_dict()) {
    names.push_back(name);
    const auto found = at::empty_like(values);
    read_into(reader, folder.string(), name, found);
    EXPECT_TRUE(at::equal(found, values)) << name;
  }
  std::ranges::sort(names);
  EXPECT_EQ(reader.names(), names);
}

INSTANTIATE_TEST_SUITE_P(Ranks, ParameterShards, testing::Values(1, 2, 3, 4));

TEST(ParameterShardsCheckpoint, DoesNotReadValuesThatAliasParameters) {
  const auto parameters = example_parameters();
  const TemporaryFolder run;
  const auto folder = save(run.path(), parameters, split(parameters, 2, 0));
  auto shards = split(parameters, 1, 0)[0];
  shards[0].values = parameters.all()[0].values.view({-1}).fill_(3);
  read_parameter_shards(folder, parameters, shards);
  EXPECT_TRUE(at::equal(parameters.all()[0].values, at::full({11, 3}, 3.0f)));
}

TEST(ParameterShardsCheckpoint, RunResumesInAnotherLayout) {
  auto config = small::deepseek();
  config.router.bias_update_rate = 1e-3;  // the model has buffers
  Transformer model(config);
  TrainingState state{5, 50, 3, BalanceState::uniform(model.layout().layers(), model.layout().experts())};
  for (const auto& [name, buffer] : model.parameters().buffers()) buffer.fill_(0.75);
  std::vector<CheckpointContents> contents;
  for (const auto& shards : split(model.parameters(), 3, 1)) {
    contents.push_back(checkpoint_contents(model, shards, state, {}, /*buffers=*/contents.empty()));
  }
  const TemporaryFolder run;
  test::InMemoryStore store;
  const auto errors = run_ranks(3, [&](int64_t rank) {
    CheckpointWriter(store.client(rank, 3), run.path(), 0).save(5, contents[static_cast<size_t>(rank)], true);
  });
  EXPECT_EQ(errors, std::vector<std::string>(3));

  config.train.seed += 1;
  Transformer other(config);
  const Optimizer other_optimizer(other.parameters(), config.optim);
  const auto folder = checkpoint_folder(run.path(), 5);
  load_weights(folder, other);
  const auto found = load_training_state(folder, other, other_optimizer.shards());
  EXPECT_EQ(found.step, 5);
  const auto expected = model.parameters().state_dict(), tensors = other.parameters().state_dict();
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(at::equal(tensors[i].second, expected[i].second)) << expected[i].first;
  for (const auto& shard : other_optimizer.shards()) {
    const auto first = moment(shard.parameter, 0, shard.end, 0.25),
               second = moment(shard.parameter, 0, shard.end, 0.5);
    EXPECT_TRUE(at::equal(shard.exp_avg, first.to(at::kDouble))) << shard.parameter;
    EXPECT_TRUE(at::equal(shard.exp_avg_sq, second.to(at::kDouble))) << shard.parameter;
  }
  EXPECT_NO_THROW(load_model(run.path()));
}

TEST(ParameterShardsCheckpoint, MissingSlicesAreReported) {
  const auto parameters = example_parameters();
  const TemporaryFolder run;
  auto ranks = split(parameters, 2, 0);
  // Rank 0's shard ends within v. Drop the moments of v's first element.
  auto& last = ranks[0].back();
  ASSERT_EQ(last.end, 22);
  const ParameterShard without_moments{last.parameter, 21, 22, last.values.slice(0, 21, 22), {}, {}};
  last = {last.parameter,
          0,
          21,
          last.values.slice(0, 0, 21),
          last.exp_avg.slice(0, 0, 21),
          last.exp_avg_sq.slice(0, 0, 21)};
  ranks[0].push_back(without_moments);
  const auto folder = save(run.path(), parameters, ranks);
  auto shards = split(parameters, 1, 0)[0];
  EXPECT_EQ(test::error_of<UserError>([&] { read_parameter_shards(folder, parameters, shards); }),
            folder.string() +
                ": tensor exp_avg.v: found the elements [1, 9), expected [0, 9) among slices of " +
                "[0, 9) that do not overlap");
}

TEST(ParameterShardsCheckpoint, MissingOrDuplicateSlicesAreNotPublished) {
  const auto parameters = example_parameters();
  const TemporaryFolder run;
  const auto messages = [&](const std::vector<std::vector<ParameterShard>>& ranks) {
    test::InMemoryStore store;
    const auto size = static_cast<int64_t>(ranks.size());
    return run_ranks(size, [&](int64_t rank) {
      CheckpointContents contents;
      add_parameter_shards(parameters, ranks[static_cast<size_t>(rank)], contents);
      CheckpointWriter(store.client(rank, size), run.path(), 0).save(1, contents, /*wait=*/true);
    });
  };
  auto ranks = split(parameters, 3, 0);
  auto lost = ranks[1].back();
  ranks[1].pop_back();
  for (const auto& message : messages(ranks))
    EXPECT_NE(message.find("rank 0: tensor e.0: found the elements [4, 10), expected [0, 10)"),
              std::string::npos)
        << message;
  ranks[1].push_back(lost);
  lost.exp_avg = lost.exp_avg_sq = at::Tensor();
  ranks[2].push_back(lost);
  for (const auto& message : messages(ranks))
    EXPECT_NE(message.find("rank 0: tensor e.0: found the elements [0, 4) [0, 10), expected [0, 10)"),
              std::string::npos)
        << message;
  EXPECT_TRUE(std::filesystem::is_empty(run / "checkpoints"));
}

}  // namespace parameter_shards_test
}  // namespace hero
