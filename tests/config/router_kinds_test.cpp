// The table of router kinds: names, the options that each kind reads.
#include "config/router_kinds.h"

#include <gtest/gtest.h>

#include <set>

#include "config/fields.h"
#include "io/error.h"

namespace router_kinds_test {

using hero::Config;
using Keys = std::vector<std::string>;

TEST(RouterKinds, HaveUniqueNamesAndExistingBases) {
  std::set<std::string> names;
  for (const auto& kind : hero::router_kinds()) {
    EXPECT_TRUE(names.insert(kind.name).second) << kind.name;
    EXPECT_FALSE(kind.title.empty() || kind.limit.empty() || kind.modeling.empty()) << kind.name;
    EXPECT_TRUE(kind.extends.empty() || names.contains(kind.extends)) << kind.name;
  }
  EXPECT_EQ(hero::router_kinds().front().name, Config().router.kind);
}

TEST(RouterKinds, AreTheChoicesOfTheOption) {
  Config config;
  const auto list = hero::fields(config);
  const auto& field = *hero::find_field(list, "router.kind");
  Keys names;
  for (const auto& kind : hero::router_kinds()) names.push_back(kind.name);
  EXPECT_EQ(field.choices, names);
  EXPECT_EQ(field.help,
            "router type; hero uses the routing history of preceding layers; rmoe carries the state of a GRU "
            "from layer to layer (arXiv 2408.06793)");
}

TEST(RouterKinds, ReadOptions) {
  Config baseline, hero_config;
  hero_config.router.kind = "hero";
  auto unread = hero::unread_options(baseline.router, 0);
  EXPECT_EQ(std::erase(unread, "router.state_size"), 1u);
  EXPECT_EQ(unread, hero::keys_with(hero::kHistoryOnly));
  EXPECT_EQ(hero::unread_options(baseline.router, hero::kSetsChunks),
            (Keys{"router.stages", "router.stage_sizes"}));
  EXPECT_EQ(hero::unread_options(hero_config.router, 0), Keys{"router.state_size"});
  Config rmoe;
  rmoe.router.kind = "rmoe";
  EXPECT_EQ(hero::unread_options(rmoe.router, 0),
            (Keys{"router.window", "router.scale", "router.eps", "router.init", "router.history",
                  "optim.history_lr", "optim.history_weight_decay"}));
  EXPECT_FALSE(hero::reads_option(baseline.router, "router.window"));
  EXPECT_TRUE(hero::reads_option(hero_config.router, "router.window"));
  EXPECT_TRUE(hero::reads_option(baseline.router, "router.z_loss"));
}

TEST(RouterKinds, ComparedWithTheBaseline) {
  Config config;
  EXPECT_EQ(hero::compared_kind(config.router).name, "hero");
  config.router.kind = "hero";
  EXPECT_EQ(hero::compared_kind(config.router).title, "HERO");
}

TEST(RouterKinds, OnlyProbabilitiesAreTruncatedForMessages) {
  Config config;
  config.parallel.history_top = 4;
  EXPECT_EQ(hero::history_top(config), 0);
  config.router.kind = "hero";
  EXPECT_EQ(hero::history_top(config), 4);
}

TEST(RouterKinds, UnknownKindIsAnError) {
  Config config;
  config.router.kind = "rnn";
  try {
    hero::router_kind_info(config.router);
    FAIL() << "no error";
  } catch (const hero::UserError& error) {
    EXPECT_STREQ(error.what(), "router.kind: found rnn, expected one of baseline, hero, rmoe");
  }
}

}  // namespace router_kinds_test
