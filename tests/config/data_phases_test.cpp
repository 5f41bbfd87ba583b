#include "config/data_phases.h"

#include <gtest/gtest.h>

#include "config/failure.h"
#include "config/fields.h"
#include "config/warnings.h"

namespace hero {
namespace data_phases_test {

using Phases = std::vector<DataPhase>;

Config with_phases(Phases phases) {
  Config config;
  config.train.steps = 100;
  config.train.global_batch = 4;
  config.train.sequence = 8;
  config.data.phases = std::move(phases);
  return config;
}

const Phases kTwo = {{.until_step = 80, .blend = {"1:data/web"}},
                     {.blend = {"0.7:data/\"books\"", "0.3:data/web"}}};

TEST(DataPhases, TextRoundTrip) {
  Config config = with_phases(kTwo);
  const std::string literal =
      R"([{until_step = 80, blend = ["1:data/web"]}, {blend = ["0.7:data/\"books\"", "0.3:data/web"]}])";
  EXPECT_EQ(phases_literal(kTwo), literal);
  EXPECT_NE(dump(config).find("\n[data]\nphase = " + literal + "\n"), std::string::npos);
  EXPECT_NE(dump(Config()).find("\n[data]\nphase = []\n"), std::string::npos);
  const Config read = load_config({}, {"--data.phase=" + literal});
  EXPECT_EQ(read.data.phases, kTwo);
  EXPECT_EQ(load_config({}, {"--data.phase=[]"}, config).data.phases, Phases());
  EXPECT_EQ(load_config({}, {"--data.phase=[{until_tokens = 9007199254740991, blend = ['a']}]"}).data.phases,
            (Phases{{.until_tokens = 9007199254740991, .blend = {"a"}}}));
  EXPECT_EQ(differences(with_phases({}), config), std::vector<std::string>{"data.phase: [] -> " + literal});
}

TEST(DataPhases, RejectedFlags) {
  const std::string expected =
      ", expected tables like [{until_step = 800, blend = [\"0.7:a\", \"0.3:b\"]}, {blend = [\"c\"]}], each "
      "with blend and at most one of until_step and until_tokens";
  for (const std::string text :
       {"a", "[{blend = 'a'}]", "[{until_step = 1}]", "[{until_step = 0, blend = ['a']}]",
        "[{until_step = 2147483648, blend = ['a']}]", "[{until_step = 1.0, blend = ['a']}]",
        "[{until_step = 1, until_tokens = 2, blend = ['a']}]", "[{blend = []}]", "[{blend = ['']}]",
        "[{blend = ['a'], x = 1}]", "['a']", "{blend = ['a']}", "[{blend = ['a']}"}) {
    EXPECT_EQ(failure([&] { load_config({}, {"--data.phase=" + text}); }),
              "--data.phase: found " + text + expected);
  }
  EXPECT_EQ(failure([] { load_config({}, {"--data.phase=[]\ntrain.steps = 1"}); }).substr(0, 20),
            "--data.phase: found ");
}

TEST(DataPhases, EndsInSteps) {
  // 32 tokens per step.
  const Config config = with_phases({{.until_tokens = 1, .blend = {"a"}},
                                     {.until_tokens = 64, .blend = {"a"}},
                                     {.until_tokens = 65, .blend = {"a"}},
                                     {.until_step = 50, .blend = {"a"}},
                                     {.blend = {"b", "c"}}});
  EXPECT_EQ(phase_ends(config), (std::vector<int64_t>{1, 2, 3, 50, kNoPhaseEnd}));
  const std::pair<int64_t, int64_t> phases[] = {{1, 1}, {2, 2}, {3, 3}, {4, 4}, {50, 4}, {51, 5}, {100, 5}};
  for (const auto& [step, phase] : phases) EXPECT_EQ(phase_of_step(config, step), phase) << step;
  EXPECT_EQ(phase_of_step(with_phases({}), 1), std::nullopt);
  EXPECT_EQ(describe_phase(config, 4), "data phase 4 of 5, steps 4 to 50: a");
  EXPECT_EQ(describe_phase(config, 5), "data phase 5 of 5, steps 51 and later: b c");
}

TEST(DataPhases, Bounds) {
  const auto error = [](Phases phases) { return failure([&] { check(with_phases(std::move(phases))); }); };
  EXPECT_EQ(error(kTwo), "");
  EXPECT_EQ(
      error({{.blend = {"a"}}, {.blend = {"b"}}}),
      "data.phase: phase 1: found no bound, expected until_step or until_tokens: only the last phase has "
      "none");
  EXPECT_EQ(error({{.until_step = 8, .blend = {"a"}}, {.until_step = 8, .blend = {"b"}}, {.blend = {"a"}}}),
            "data.phase: phase 2: found until_step = 8, expected a later step than that of phase 1, "
            "until_step = 8");
  // Different numbers of tokens that end with the same step.
  EXPECT_EQ(
      error({{.until_tokens = 33, .blend = {"a"}}, {.until_tokens = 64, .blend = {"b"}}, {.blend = {"a"}}}),
      "data.phase: phase 2: found until_tokens = 64 (step 2), expected a later step than that of phase 1, "
      "until_tokens = 33 (step 2)");
  EXPECT_EQ(
      error({{.until_step = 99, .blend = {"a"}}}),
      "data.phase: phase 1: found until_step = 99, expected no bound, or at least train.steps = 100, in "
      "the last phase");
  EXPECT_EQ(error({{.until_tokens = 99 * 32 + 1, .blend = {"a"}}}), "");
}

TEST(DataPhases, WarnsOfPhasesThatDoNotBegin) {
  const auto lines = [](Phases phases) {
    return options_without_effect(with_phases(std::move(phases)), /*ranks=*/1, /*cuda=*/false);
  };
  EXPECT_EQ(lines(kTwo), std::vector<std::string>());
  EXPECT_EQ(
      lines({{.until_step = 99, .blend = {"a"}}, {.until_step = 100, .blend = {"b"}}, {.blend = {"c"}}}),
      std::vector<std::string>{"data.phase: phase 3 has no effect: it begins after step 100, and the run "
                               "has train.steps = 100"});
}

}  // namespace data_phases_test
}  // namespace hero
