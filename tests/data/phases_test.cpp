// The order of samples with phases, against a slow reference, and the plans made from options.
#include "data/phases.h"

#include <filesystem>
#include <random>

#include "config/data_phases.h"
#include "data/counter_random.h"
#include "data/files.h"
#include "data/indexed_writer.h"
#include "data/sampler.h"

namespace hero {
namespace phases_test {

// Documents of lengths 1 to n with consecutive ids from `first`.
void write_set(const std::string& prefix, int n, int32_t first) {
  IndexedWriter writer(prefix, TokenType::i32);
  int32_t next = first;
  for (int d = 1; d <= n; ++d) {
    std::vector<int32_t> ids;
    for (int i = 0; i < d; ++i) ids.push_back(next++);
    writer.add_document(ids);
  }
  writer.finish();
}

using Random = std::mt19937_64;

int64_t uniform(Random& random, int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(random);
}

// Up to 5 phases of up to 60 samples over some of `sources` sources.
DataPlan random_plan(Random& random, const std::vector<std::string>& prefixes) {
  DataPlan plan{.prefixes = prefixes, .phases = {}};
  int64_t begin = 0;
  for (int64_t count = uniform(random, 1, 5); count > 0; --count) {
    PhaseBlend phase{.begin = begin, .sources = {}, .weights = {}};
    for (int64_t k = 0; k < std::ssize(prefixes); ++k) phase.sources.push_back(k);
    std::ranges::shuffle(phase.sources, random);
    phase.sources.resize(uniform(random, 1, std::ssize(prefixes)));
    for (size_t k = 0; k < phase.sources.size(); ++k)
      phase.weights.push_back(static_cast<double>(uniform(random, 1, 100)));
    plan.phases.push_back(phase);
    begin += uniform(random, 1, 60);
  }
  return plan;
}

// Source and index of every position: a new blend for each phase, and one counter for each source.
std::vector<BlendedSampler::Choice> slow_order(const DataPlan& plan, int64_t total) {
  std::vector<BlendedSampler::Choice> order;
  std::vector<int64_t> used(plan.prefixes.size());
  for (size_t p = 0; p < plan.phases.size(); ++p) {
    const int64_t end = p + 1 < plan.phases.size() ? plan.phases[p + 1].begin : total;
    for (int64_t i = 0; i < end - plan.phases[p].begin; ++i) {
      const int64_t source = plan.phases[p].sources[BlendedSampler(plan.phases[p].weights).at(i).source];
      order.push_back({source, used[source]++});
    }
  }
  return order;
}

constexpr int64_t kTotal = 320;
const std::vector<std::string> kNames = {"a", "b", "c", "d"};

TEST(PhasedSampler, AsASlowReferenceFromAnyPosition) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const DataPlan plan = random_plan(random, kNames);
    const auto expected = slow_order(plan, kTotal);
    PhasedSampler forward(plan), jumping(plan);
    std::vector<std::vector<int64_t>> counts = {std::vector<int64_t>(kNames.size())};
    for (int64_t i = 0; i < kTotal; ++i) {
      const auto found = forward.at(i);
      ASSERT_EQ(found.source, expected[i].source) << i;
      ASSERT_EQ(found.index, expected[i].index) << i;
      counts.push_back(counts.back());
      ++counts.back()[found.source];
    }
    for (int n = 0; n < 80; ++n) {
      const int64_t i = uniform(random, 0, kTotal - 1);
      const auto found = jumping.at(i);
      ASSERT_EQ(found.source, expected[i].source) << i;
      ASSERT_EQ(found.index, expected[i].index) << i;
      const int64_t at = uniform(random, 0, kTotal);
      ASSERT_EQ(jumping.counts(at), counts[at]) << at;
    }
  }
}

TEST(PhasedSampler, EachPhaseKeepsItsOwnShares) {
  for (uint64_t seed = 100; seed < 130; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const DataPlan plan = random_plan(random, kNames);
    PhasedSampler sampler(plan);
    for (size_t p = 0; p < plan.phases.size(); ++p) {
      const PhaseBlend& phase = plan.phases[p];
      const int64_t end = p + 1 < plan.phases.size() ? plan.phases[p + 1].begin : kTotal;
      double sum = 0;
      for (const double weight : phase.weights) sum += weight;
      const auto before = sampler.counts(phase.begin);
      for (int64_t at = phase.begin; at <= end; ++at) {
        const auto counts = sampler.counts(at);
        for (size_t k = 0; k < phase.sources.size(); ++k) {
          const int64_t source = phase.sources[k];
          const double share = phase.weights[k] / sum * static_cast<double>(at - phase.begin);
          ASSERT_LT(std::abs(static_cast<double>(counts[source] - before[source]) - share), 1 + 1e-6) << at;
        }
      }
    }
  }
}

// Tokens, starts and the number of trained targets are those of the sources' own samples, which continue.
TEST(TokenStream, ReadsTheSamplesOfThePhases) {
  const TemporaryFolder folder;
  const int64_t sequence = 6;
  const std::vector<std::string> prefixes = {folder / "a", folder / "b", folder / "c"};
  for (size_t k = 0; k < prefixes.size(); ++k)
    write_set(prefixes[k], 9 + 5 * static_cast<int>(k), 1 + 10000 * static_cast<int32_t>(k));
  for (const Packing packing : {Packing::kConcat, Packing::kBestFit}) {
    for (uint64_t seed = 200; seed < 212; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", packing " + name_of(packing));
      Random random(seed);
      const DataPlan plan = random_plan(random, prefixes);
      std::vector<PackedDataset> sets;
      for (size_t k = 0; k < prefixes.size(); ++k)
        sets.emplace_back(std::make_shared<const IndexedDataset>(prefixes[k]), sequence,
                          counter_bits(seed, k), 0, packing);
      std::vector<int64_t> tokens, starts, trained;
      for (const auto& [source, index] : slow_order(plan, kTotal)) {
        std::vector<int64_t> a(sequence + 1), b(sequence + 1), c(sequence + 1);
        sets[source].sample(index, {.tokens = a.data(), .starts = b.data(), .trained = c.data()});
        tokens.insert(tokens.end(), a.begin(), a.end());
        starts.insert(starts.end(), b.begin(), b.end());
        trained.insert(trained.end(), c.begin(), c.end());
      }
      TokenStream whole(plan, sequence, seed, 0, 0, {packing});
      for (size_t k = 0; k < sets.size(); ++k) EXPECT_EQ(whole.epoch_samples()[k], sets[k].epoch_samples());
      for (int64_t at = 0; at < kTotal;) {
        const int64_t count = std::min(uniform(random, 1, 40), kTotal - at);
        const size_t begin = at * (sequence + 1), size = count * (sequence + 1);
        std::vector<int64_t> found(size), found_starts(size);
        // A new stream is a resumed run, the other one has read everything before.
        TokenStream resumed(plan, sequence, seed, 0, 0, {packing});
        for (TokenStream* stream : {&whole, &resumed}) {
          stream->read(at, count, {.tokens = found.data(), .starts = found_starts.data()});
          ASSERT_TRUE(std::equal(found.begin(), found.end(), tokens.begin() + begin)) << at;
          ASSERT_TRUE(std::equal(found_starts.begin(), found_starts.end(), starts.begin() + begin)) << at;
          int64_t expected = 0;
          for (size_t i = 0; i < size; ++i) expected += i % (sequence + 1) > 0 ? trained[begin + i] : 0;
          ASSERT_EQ(stream->trained_targets(at, count).front(), expected) << at;
        }
        at += count;
      }
    }
  }
}

Config with_phases(std::vector<DataPhase> phases) {
  Config config;
  config.train.steps = 20;
  config.train.global_batch = 4;
  config.train.sequence = 8;
  config.data.phases = std::move(phases);
  return config;
}

TEST(DataPlan, SourcesAreTheSameByResolvedPrefix) {
  const TemporaryFolder folder;
  write_set(folder / "web-train", 9, 1);
  write_set(folder / "books", 9, 1);
  const auto plan =
      make_data_plan(with_phases({{.until_step = 3, .blend = {folder / "web"}},
                                  {.until_tokens = 4 * 8 * 5 + 1,
                                   .blend = {"1:" + (folder / "books.bin"), "3:" + (folder / "./web")}},
                                  {.blend = {folder / "web-train.idx", folder / "new"}}}),
                     {});
  EXPECT_EQ(plan.prefixes,
            (std::vector<std::string>{folder / "web-train", folder / "books", folder / "new"}));
  ASSERT_EQ(plan.phases.size(), 3U);
  const int64_t begins[] = {0, 12, 24};  // the second bound is reached in step 6
  const std::vector<int64_t> sources[] = {{0}, {1, 0}, {0, 2}};
  const std::vector<double> weights[] = {{1}, {1, 3}, {1, 1}};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(plan.phases[i].begin, begins[i]);
    EXPECT_EQ(plan.phases[i].sources, sources[i]);
    EXPECT_EQ(plan.phases[i].weights, weights[i]);
  }
  for (const auto& [samples, count] : {std::pair(0, 0), {1, 1}, {12, 1}, {13, 2}, {24, 2}, {25, 3}})
    EXPECT_EQ(sources_before(plan, samples), count) << samples;
}

TEST(DataPlan, OnePhaseIsTheDataOption) {
  const std::vector<std::string> blend = {"0.25:none/a", "0.75:none/b"};
  const DataPlan phase = make_data_plan(with_phases({{.blend = blend}}), {});
  const DataPlan data = make_data_plan(with_phases({}), blend);
  EXPECT_EQ(phase.prefixes, data.prefixes);
  EXPECT_EQ(phase.phases[0].sources, data.phases[0].sources);
  EXPECT_EQ(phase.phases[0].weights, data.phases[0].weights);
  EXPECT_FALSE(earlier_difference(phase, data, kNoPhaseEnd, 1));
  // As before, a source that --data repeats counts as two.
  EXPECT_EQ(make_data_plan(with_phases({}), {"none/a", "none/a"}).prefixes.size(), 2U);
}

TEST(DataPlan, Errors) {
  const auto error = [](std::vector<DataPhase> phases, const std::vector<std::string>& data = {}) {
    return user_error([&] { make_data_plan(with_phases(std::move(phases)), data); });
  };
  EXPECT_EQ(error({}), "--data: found nothing, expected PREFIX or WEIGHT:PREFIX");
  EXPECT_EQ(error({{.blend = {"a"}}}, {"b"}),
            "--data: found b together with data.phase, expected one of them: each phase has its own blend");
  EXPECT_EQ(error({{.until_step = 2, .blend = {"a"}}, {.blend = {"1:a", "b"}}}),
            "data.phase: phase 2: blend: 1 of 2 sources have a weight, expected all (WEIGHT:PREFIX) or none");
  EXPECT_EQ(error({{.blend = {"0:a"}}}),
            "data.phase: phase 1: blend 0:a: expected a weight above 0 before the ':'");
  EXPECT_EQ(error({{.blend = {"1:a", "2:./a"}}}),
            "data.phase: phase 1: blend: found ./a twice, expected each source once");
  EXPECT_EQ(error({{.blend = {"a"}}, {.blend = {"b"}}}).substr(0, 37),
            "data.phase: phase 1: found no bound, ");
}

TEST(DataPlan, DifferencesOfEarlierSamples) {
  const auto plan = [](std::vector<DataPhase> phases) {
    return make_data_plan(with_phases(std::move(phases)), {});
  };
  const DataPlan own = plan({{.until_step = 8, .blend = {"1:a", "1:b"}}, {.blend = {"c"}}});
  const auto difference = [&](const DataPlan& found, int64_t steps) {
    return earlier_difference(found, own, 4 * steps, 4).value_or("");
  };
  EXPECT_EQ(difference(own, 20), "");
  // Later phases may change, and the current one may end elsewhere, but not earlier.
  const DataPlan other = plan({{.until_step = 6, .blend = {"0.5:a", "0.5:./b"}}, {.blend = {"d", "a"}}});
  for (const int64_t steps : {0, 1, 6}) EXPECT_EQ(difference(other, steps), "") << steps;
  EXPECT_EQ(difference(other, 7), "found phase 2 from step 7 with 1:d 1:a, expected no phase 2 up to step 7");
  EXPECT_EQ(difference(other, 9),
            "found phase 2 from step 7 with 1:d 1:a, expected phase 2 from step 9 with 1:c");
  const DataPlan longer = plan({{.blend = {"a", "b"}}});
  EXPECT_EQ(difference(longer, 8), "");
  EXPECT_EQ(difference(longer, 9), "found no phase 2 up to step 9, expected phase 2 from step 9 with 1:c");
  EXPECT_EQ(difference(plan({{.blend = {"2:a", "1:b"}}}), 1),
            "found phase 1 from step 1 with 2:a 1:b, expected phase 1 from step 1 with 1:a 1:b");
  EXPECT_EQ(difference(plan({{.blend = {"b", "a"}}}), 1),
            "found phase 1 from step 1 with 1:b 1:a, expected phase 1 from step 1 with 1:a 1:b");
}

}  // namespace phases_test
}  // namespace hero
