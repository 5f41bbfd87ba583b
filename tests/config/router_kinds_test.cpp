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
  EXPECT_EQ(field.help, "router type; hero uses the routing history of preceding layers");
}

TEST(RouterKinds, ReadOptions) {
  Config baseline, hero_config;
  hero_config.router.kind = "hero";
  EXPECT_EQ(hero::unread_options(baseline.router, 0), hero::keys_with(hero::kHistoryOnly));
  EXPECT_EQ(hero::unread_options(baseline.router, hero::kSetsChunks),
            (Keys{"router.stages", "router.stage_sizes"}));
  EXPECT_EQ(hero::unread_options(hero_config.router, 0), Keys{});
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
  config.router.kind = "rmoe";
  try {
    hero::router_kind_info(config.router);
    FAIL() << "no error";
  } catch (const hero::UserError& error) {
    EXPECT_STREQ(error.what(), "router.kind: found rmoe, expected one of baseline, hero");
  }
}

}  // namespace router_kinds_test
