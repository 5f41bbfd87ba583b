#include "config/choices.h"

#include <gtest/gtest.h>

#include <set>

#include "config/failure.h"
#include "config/fields.h"

namespace hero {
namespace choices_test {

TEST(Choices, EveryOptionTakesAllItsNamesAndNoOther) {
  Config config;
  std::set<std::string> keys;
  for (const Field& field : fields(config)) {
    if (!std::holds_alternative<ChoiceRef>(field.value)) continue;
    keys.insert(field.key);
    EXPECT_EQ(type_name(field), "string") << field.key;
    EXPECT_EQ(std::set<std::string>(field.choices.begin(), field.choices.end()).size(), field.choices.size());
    for (const std::string& name : field.choices) {
      ASSERT_TRUE(assign(field, name)) << field.key << " " << name;
      EXPECT_EQ(read(field), FieldValue(name)) << field.key;
    }
    const FieldValue last = read(field);
    EXPECT_FALSE(assign(field, std::string("unknown")) || assign(field, std::string()) ||
                 assign(field, int64_t{0}))
        << field.key;
    EXPECT_EQ(read(field), last) << field.key;
  }
  EXPECT_EQ(keys, (std::set<std::string>{"model.model_type", "model.rope_scaling.type", "model.scoring_func",
                                         "router.init", "router.history", "router.dtype", "router.balance",
                                         "router.drop_policy", "train.dtype", "train.device",
                                         "train.trainable", "optim.kind", "optim.schedule",
                                         "optim.decay_shape", "train.pack", "parallel.schedule"}));
}

// The last enumerator has the last name, so no enum has more values than names or fewer.
template <class E>
void expect_names(E last, const std::vector<std::string>& names) {
  EXPECT_EQ(names_of<E>(), names);
  EXPECT_EQ(name_of(last), names.back());
  for (size_t i = 0; i < names.size(); ++i) EXPECT_EQ(find_choice<E>(names[i]), static_cast<E>(i));
}

TEST(Choices, NamesAreInTheOrderOfTheEnumerators) {
  expect_names(ModelType::kMixtral, {"qwen3_moe", "deepseek_v3", "olmoe", "mixtral"});
  expect_names(RopeType::kYarn, {"default", "yarn"});
  expect_names(ScoringFunc::kSigmoid, {"softmax", "sigmoid"});
  expect_names(RouterInit::kZero, {"uniform", "zero"});
  expect_names(HistoryScope::kGlobal, {"stage", "global"});
  expect_names(RouterDtype::kFp32, {"train", "fp32"});
  expect_names(BalanceScope::kPooled, {"none", "micro_batch", "sequence", "global", "pooled"});
  expect_names(DropPolicy::kPosition, {"probs", "position"});
  expect_names(Dtype::kFp64, {"bf16", "fp32", "fp64"});
  expect_names(DeviceChoice::kCuda, {"auto", "cpu", "cuda"});
  expect_names(Trainable::kRouters, {"all", "routers"});
  expect_names(OptimKind::kMuon, {"adamw", "muon"});
  expect_names(LrSchedule::kConstant, {"cosine", "wsd", "linear", "constant"});
  expect_names(DecayShape::k1Sqrt, {"linear", "cosine", "1-sqrt"});
  expect_names(PipelineSchedule::kZeroBubble, {"1f1b", "interleaved", "zero_bubble"});
}

TEST(Choices, UnknownNamesAreErrors) {
  EXPECT_EQ(parse_choice<DeviceChoice>("device", "cpu"), DeviceChoice::kCpu);
  EXPECT_EQ(failure([] { parse_choice<DeviceChoice>("device", "gpu"); }),
            "device: found gpu, expected one of auto, cpu, cuda");
  EXPECT_EQ(find_choice<Dtype>("fp16"), std::nullopt);
}

}  // namespace choices_test
}  // namespace hero
