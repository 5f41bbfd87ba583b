#include "config/fields.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace hero {
namespace {

const Field& field(const std::vector<Field>& list, const std::string& key) {
  const Field* found = find_field(list, key);
  if (!found) throw std::out_of_range(key);
  return *found;
}

TEST(Fields, KeysAndAliasesAreUniqueAndValuesDistinct) {
  Config config;
  std::set<std::string> names;
  std::set<const void*> members;
  for (const Field& f : fields(config)) {
    EXPECT_TRUE(names.insert(f.key).second) << f.key;
    for (const std::string& alias : f.aliases) EXPECT_TRUE(names.insert(alias).second) << alias;
    std::visit([&](auto* value) { EXPECT_TRUE(members.insert(value).second) << f.key; }, f.value);
    EXPECT_FALSE(f.help.empty()) << f.key;
  }
}

TEST(Fields, KeyMapsToMember) {
  Config config;
  const std::vector<Field> list = fields(config);
  ASSERT_TRUE(assign(field(list, "router.window"), int64_t{3}));
  ASSERT_TRUE(assign(field(list, "optim.beta2"), 0.99));
  ASSERT_TRUE(assign(field(list, "train.recompute"), true));
  ASSERT_TRUE(assign(field(list, "model.scoring_func"), std::string("sigmoid")));
  EXPECT_EQ(config.router.window, 3);
  EXPECT_EQ(config.optim.beta2, 0.99);
  EXPECT_TRUE(config.train.recompute);
  EXPECT_EQ(config.model.scoring_func, "sigmoid");
}

TEST(Fields, DefaultsAreWithinBounds) {
  Config config;
  for (const Field& f : fields(config)) EXPECT_TRUE(assign(f, read(f))) << f.key;
}

TEST(Fields, AliasesMapToSameField) {
  Config config;
  const std::vector<Field> list = fields(config);
  EXPECT_EQ(find_field(list, "model.n_routed_experts"), find_field(list, "model.num_experts"));
  EXPECT_EQ(find_field(list, "model.num_local_experts"), find_field(list, "model.num_experts"));
  EXPECT_EQ(find_field(list, "model.experts"), nullptr);
}

TEST(Fields, RejectedValuesChangeNothing) {
  Config config;
  const std::vector<Field> list = fields(config);
  EXPECT_FALSE(assign(field(list, "train.steps"), int64_t{0}));
  EXPECT_FALSE(assign(field(list, "train.steps"), int64_t{2147483648}));
  EXPECT_FALSE(assign(field(list, "train.steps"), 5.0));
  EXPECT_FALSE(assign(field(list, "optim.lr"), 0.0));
  EXPECT_FALSE(assign(field(list, "optim.lr"), NAN));
  EXPECT_FALSE(assign(field(list, "optim.lr"), INFINITY));
  EXPECT_FALSE(assign(field(list, "optim.beta1"), 1.0));
  EXPECT_FALSE(assign(field(list, "router.jitter"), -0.1));
  EXPECT_FALSE(assign(field(list, "router.scale"), int64_t{1}));
  EXPECT_FALSE(assign(field(list, "router.kind"), std::string("Hero")));
  EXPECT_EQ(differences(config, Config()), std::vector<std::string>());
}

TEST(Fields, SeedHasLargerLimit) {
  Config config;
  const std::vector<Field> list = fields(config);
  EXPECT_TRUE(assign(field(list, "train.seed"), int64_t{9007199254740991}));
  EXPECT_FALSE(assign(field(list, "train.seed"), int64_t{9007199254740993}));
  EXPECT_EQ(config.train.seed, 9007199254740991);
}

TEST(Fields, NearestKey) {
  Config config;
  const std::vector<Field> list = fields(config);
  EXPECT_EQ(nearest_key(list, "router.windwo"), "router.window");
  EXPECT_EQ(nearest_key(list, "window"), "router.window");
  EXPECT_EQ(nearest_key(list, "train.weight_decay"), "optim.weight_decay");
  EXPECT_EQ(nearest_key(list, "model.n_routed_expert"), "model.n_routed_experts");
}

TEST(Fields, Literals) {
  EXPECT_EQ(literal(int64_t{-3}), "-3");
  EXPECT_EQ(literal(1.0), "1.0");
  EXPECT_EQ(literal(0.1), "0.1");
  EXPECT_EQ(literal(1e-20), "1e-20");
  EXPECT_EQ(literal(false), "false");
  EXPECT_EQ(literal(std::string("bf16")), "\"bf16\"");
}

TEST(Fields, ExpectedText) {
  Config config;
  const std::vector<Field> list = fields(config);
  EXPECT_EQ(expected(field(list, "router.window")), "an integer from 0 to 2147483647");
  EXPECT_EQ(expected(field(list, "optim.lr")), "a finite number above 0");
  EXPECT_EQ(expected(field(list, "optim.min_lr")), "a finite number of at least 0");
  EXPECT_EQ(expected(field(list, "optim.beta1")), "a finite number of at least 0 and below 1");
  EXPECT_EQ(expected(field(list, "router.scale")), "true or false");
  EXPECT_EQ(expected(field(list, "router.kind")), "one of baseline, hero");
}

}  // namespace
}  // namespace hero
