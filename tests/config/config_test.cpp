#include "config/config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "config/failure.h"
#include "config/fields.h"
#include "config/overrides.h"

namespace hero {
namespace config_test {

// Writes files to a temporary folder.
class ConfigFiles : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              ("hero-config-" + std::string(info->name()) + "-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& text, const std::string& name = "a.toml") const {
    const std::string path = (folder_ / name).string();
    std::ofstream(path) << text;
    return path;
  }
  // Error message for a file with this text, without the folder.
  std::string message(const std::string& text) const {
    const std::string path = write(text);
    return without_folder(failure([&] { load_config({path}, {}); }));
  }
  std::string without_folder(std::string text) const {
    const std::string prefix = folder_.string() + "/";
    if (text.starts_with(prefix)) text.erase(0, prefix.size());
    return text;
  }

  std::filesystem::path folder_;
};

std::string flag_message(const std::string& flag) {
  return failure([&] { load_config({}, {flag}); });
}

TEST_F(ConfigFiles, EmptyInputGivesDefaults) {
  EXPECT_EQ(differences(load_config({}, {}), Config()), std::vector<std::string>());
  EXPECT_EQ(differences(load_config({write("[router]\n")}, {}), Config()), std::vector<std::string>());
}

TEST_F(ConfigFiles, LaterFilesAndFlagsOverride) {
  const std::string base =
      write("[router]\nkind = 'hero'\nwindow = 1\n[train]\nsteps = 10\nseed = 5\n", "base.toml");
  const std::string overlay = write("router.window = 2\ntrain.steps = 20\n", "overlay.toml");
  const Config config = load_config({base, overlay}, {"--train.steps=30", "--train.steps=40"});
  EXPECT_EQ(config.router.kind, "hero");
  EXPECT_EQ(config.router.window, 2);
  EXPECT_EQ(config.train.steps, 40);
  EXPECT_EQ(config.train.seed, 5);
}

TEST_F(ConfigFiles, TomlNumberFormats) {
  const Config config = load_config(
      {write("[model]\nn_routed_experts = 1_28\nrope_theta = 1_000_000\n[optim]\nlr = 2E-3\neps = +1e-8\n")},
      {});
  EXPECT_EQ(config.model.num_experts, 128);
  EXPECT_EQ(config.model.rope_theta, 1e6);
  EXPECT_EQ(config.optim.lr, 2e-3);
  EXPECT_EQ(config.optim.eps, 1e-8);
}

TEST_F(ConfigFiles, UnknownKeys) {
  EXPECT_EQ(message("[router]\nkind = 'hero'\nwindwo = 3\n"),
            "a.toml:3: router.windwo: unknown key; did you mean router.window?");
  EXPECT_EQ(message("window = 3\n"), "a.toml:1: window: unknown key; did you mean router.window?");
  EXPECT_EQ(message("\n[routre]\nwindow = 3\n"),
            "a.toml:3: routre.window: unknown key; did you mean router.window?");
  EXPECT_EQ(message("[model.rope]\ntheta = 3.0\n"),
            "a.toml:2: model.rope.theta: unknown key; did you mean model.rope_theta?");
  EXPECT_EQ(message("[optim]\n[optimizer]\n").substr(0, 31), "a.toml:2: optimizer: unknown ke");
}

TEST_F(ConfigFiles, ErrorNamesTheFirstInvalidLine) {
  EXPECT_EQ(message("[train]\nsteps = 0\nseed = -1\n[model]\nhead_dim = 0\n").substr(0, 22),
            "a.toml:2: train.steps:");
}

TEST_F(ConfigFiles, WrongTypes) {
  EXPECT_EQ(message("[router]\nwindow = '3'\n"),
            "a.toml:2: router.window: found '3', expected an integer from 0 to 2147483647");
  EXPECT_EQ(message("[router]\nwindow = 3.0\n"),
            "a.toml:2: router.window: found 3.0, expected an integer from 0 to 2147483647");
  EXPECT_EQ(message("[router]\nscale = 1\n"), "a.toml:2: router.scale: found 1, expected true or false");
  EXPECT_EQ(message("[router]\nkind = true\n"),
            "a.toml:2: router.kind: found true, expected one of baseline, hero, rmoe");
  EXPECT_EQ(message("[optim]\nlr = [1, 2]\n"),
            "a.toml:2: optim.lr: found an array, expected a finite number above 0");
  EXPECT_EQ(message("[optim]\nlr = 2026-01-01\n"),
            "a.toml:2: optim.lr: found 2026-01-01, expected a finite number above 0");
  EXPECT_EQ(message("optim = 3\n"), "a.toml:1: optim: found 3, expected the section [optim]");
  EXPECT_EQ(message("[[optim]]\nlr = 1e-3\n"),
            "a.toml:1: optim: found an array, expected the section [optim]");
}

TEST_F(ConfigFiles, ArraysOfTables) {
  const std::string file =
      write("[[data.phase]]\nuntil_step = 8\nblend = ['a']\n[[data.phase]]\nblend = ['1:b', '2:c']\n");
  const auto phases = load_config({file}, {}).data.phases;
  EXPECT_EQ(phases, (std::vector<DataPhase>{{.until_step = 8, .blend = {"a"}}, {.blend = {"1:b", "2:c"}}}));
  // A later list replaces the whole list.
  EXPECT_EQ(load_config({file, write("data.phase = [{blend = ['d']}]\n", "b.toml")}, {}).data.phases,
            (std::vector<DataPhase>{{.blend = {"d"}}}));
  const auto start = [&](const std::string& tables) {
    const std::string text = message(tables);
    return text.substr(0, text.find(", expected tables like ["));
  };
  EXPECT_EQ(start("[[data.phase]]\nblend = ['a']\n[[data.phase]]\nuntil_steps = 8\n"),
            "a.toml:1: data.phase: found an array whose table 2 has the key until_steps");
  EXPECT_EQ(start("[[data.phase]]\nblend = 'a'\n"),
            "a.toml:1: data.phase: found an array whose table 1 has no list of strings as blend");
  EXPECT_EQ(start("[[data.phase]]\nuntil_step = 0\nblend = ['a']\n"),
            "a.toml:1: data.phase: found an array whose table 1 has no integer above 0 as until_step");
  EXPECT_EQ(start("[[data.phase]]\nuntil_step = 1\n"), "a.toml:1: data.phase: found an array");
  EXPECT_EQ(start("[data.phase]\nblend = ['a']\n"), "a.toml:2: data.phase.blend: found a table data.phase");
}

TEST_F(ConfigFiles, OutOfRange) {
  EXPECT_EQ(message("[train]\nsteps = -1\n"),
            "a.toml:2: train.steps: found -1, expected an integer from 1 to 2147483647");
  EXPECT_EQ(message("[optim]\nlr = nan\n"),
            "a.toml:2: optim.lr: found nan, expected a finite number above 0");
  EXPECT_EQ(message("[optim]\nbeta1 = 1\n"),
            "a.toml:2: optim.beta1: found 1, expected a finite number of at least 0 and below 1");
}

TEST_F(ConfigFiles, InvalidChoice) {
  EXPECT_EQ(message("[train]\ndtype = \"fp16\"\n"),
            "a.toml:2: train.dtype: found 'fp16', expected one of bf16, fp32, fp64");
}

TEST_F(ConfigFiles, DuplicateKeyByAlias) {
  EXPECT_EQ(message("[model]\nnum_experts = 8\nn_routed_experts = 8\n"),
            "a.toml:3: model.n_routed_experts: duplicate of model.num_experts in line 2");
}

TEST_F(ConfigFiles, MessagesAreOneLine) {
  const std::string text = message("[train]\ndtype = '''a\nb" + std::string(100, 'x') + "'''\n");
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  EXPECT_LT(text.size(), 140u) << text;
}

TEST_F(ConfigFiles, InvalidTomlErrorHasPosition) {
  EXPECT_TRUE(message("[train]\nsteps = = 3\n").starts_with("a.toml:2:9: invalid TOML: "))
      << message("[train]\nsteps = = 3\n");
  const std::string twice = message("[train]\nsteps = 3\nsteps = 4\n");
  EXPECT_TRUE(twice.starts_with("a.toml:3:")) << twice;
  EXPECT_NE(twice.find("'steps'"), std::string::npos) << twice;
}

TEST_F(ConfigFiles, OverridesApplyToAnyBase) {
  const std::string path = write("[train]\nsteps = 10\nsequence = 64\n");
  const ConfigOverrides overrides({path}, {"--train.steps=20", "--train.dtype=fp32"});
  std::filesystem::remove(path);  // parsed once
  Config base;
  base.train.seed = 5, base.train.sequence = 8;
  const Config changed = overrides.applied_to(base);
  EXPECT_EQ(differences(base, changed),
            (std::vector<std::string>{"train.steps: 1000 -> 20", "train.sequence: 8 -> 64",
                                      "train.dtype: \"bf16\" -> \"fp32\"", "optim.warmup_steps: 50 -> 20"}));
  EXPECT_EQ(overrides.applied_to(Config()).train.seed, Config().train.seed);
  EXPECT_TRUE(overrides.has_files());
  EXPECT_FALSE(ConfigOverrides({}, {"--train.steps=20"}).has_files());
}

TEST_F(ConfigFiles, DefaultWarmupIsAtMostTheSteps) {
  EXPECT_EQ(load_config({}, {"--train.steps=20"}).optim.warmup_steps, 20);
  EXPECT_EQ(load_config({}, {"--train.steps=60"}).optim.warmup_steps, 50);
  EXPECT_EQ(load_config({}, {"--train.steps=20", "--optim.warmup_steps=50"}).optim.warmup_steps, 50);
  const std::string path = write("[optim]\nwarmup_steps = 30\n");
  EXPECT_EQ(load_config({path}, {"--train.steps=20"}).optim.warmup_steps, 30);
  EXPECT_TRUE(ConfigOverrides({path}, {}).sets(kWarmupSteps));
  EXPECT_FALSE(ConfigOverrides({}, {"--train.steps=20"}).sets(kWarmupSteps));
}

TEST_F(ConfigFiles, UnreadableFiles) {
  const std::string missing = (folder_ / "missing.toml").string();
  EXPECT_EQ(without_folder(failure([&] { load_config({missing}, {}); })),
            "missing.toml: cannot be read: No such file or directory, expected a TOML file");
  EXPECT_EQ(failure([&] { load_config({folder_.string()}, {}); }),
            folder_.string() + ": found a directory, expected a TOML file");
}

TEST(Flags, SetFields) {
  const Config config = load_config(
      {}, {"--router.window=3", "--optim.lr=2e-3", "--optim.weight_decay=0", "--router.scale=false",
           "--model.n_routed_experts=64", "--train.dtype=fp64", "--train.device=cuda"});
  EXPECT_EQ(config.router.window, 3);
  EXPECT_EQ(config.optim.lr, 2e-3);
  EXPECT_EQ(config.optim.weight_decay, 0.0);
  EXPECT_FALSE(config.router.scale);
  EXPECT_EQ(config.model.num_experts, 64);
  EXPECT_EQ(config.train.dtype, Dtype::kFp64);
  EXPECT_EQ(config.train.device, DeviceChoice::kCuda);
}

TEST(Flags, Messages) {
  EXPECT_EQ(flag_message("--router.windwo=3"), "--router.windwo: unknown key; did you mean router.window?");
  EXPECT_EQ(flag_message("--router.window"),
            "--router.window: found no value, expected --router.window=value");
  EXPECT_EQ(flag_message("--steps"), "--steps: unknown key; did you mean train.steps?");
  EXPECT_EQ(flag_message("--router.window="),
            "--router.window: found an empty value, expected an integer from 0 to 2147483647");
  EXPECT_EQ(flag_message("--router.window=three"),
            "--router.window: found three, expected an integer from 0 to 2147483647");
  EXPECT_EQ(flag_message("--router.window=3.0"),
            "--router.window: found 3.0, expected an integer from 0 to 2147483647");
  EXPECT_EQ(flag_message("--router.window=3 "),
            "--router.window: found 3 , expected an integer from 0 to 2147483647");
  EXPECT_EQ(flag_message("--router.window=99999999999999999999"),
            "--router.window: found 99999999999999999999, expected an integer from 0 to 2147483647");
  EXPECT_EQ(flag_message("--optim.lr=fast"), "--optim.lr: found fast, expected a finite number above 0");
  EXPECT_EQ(flag_message("--optim.lr=inf"), "--optim.lr: found inf, expected a finite number above 0");
  EXPECT_EQ(flag_message("--router.scale=yes"), "--router.scale: found yes, expected true or false");
  EXPECT_EQ(flag_message("--router.kind=rnn"),
            "--router.kind: found rnn, expected one of baseline, hero, rmoe");
  EXPECT_EQ(flag_message("--router.balance=expert"),
            "--router.balance: found expert, expected one of none, micro_batch, sequence, global, pooled");
  EXPECT_EQ(flag_message("--=3"), "--=3: found no key, expected --section.key=value");
  EXPECT_EQ(flag_message("router.window=3"), "router.window=3: found no key, expected --section.key=value");
}

TEST_F(ConfigFiles, DumpRoundTrip) {
  Config config;
  int64_t n = 0;
  for (const Field& field : fields(config)) {  // change every value from its default
    ++n;
    std::visit(
        [&](auto value) {
          using Type = std::remove_pointer_t<decltype(value)>;
          if constexpr (std::is_same_v<Type, int64_t>) *value += n;
          if constexpr (std::is_same_v<Type, double>) *value = 1.0 / (3.0 + static_cast<double>(n));
          if constexpr (std::is_same_v<Type, bool>) *value = !*value;
          if constexpr (std::is_same_v<Type, std::string>)
            *value = field.choices.empty() ? "a \"b\"\\" : field.choices[*value == field.choices[0] ? 1 : 0];
          if constexpr (std::is_same_v<Type, std::vector<int64_t>>) *value = {n, n + 1};
          if constexpr (std::is_same_v<Type, std::vector<std::string>>) *value = {"a \"b\"\\", "c=d"};
          if constexpr (std::is_same_v<Type, std::vector<DataPhase>>)
            *value = {{.until_step = n, .blend = {"a \"b\"\\", "c=d"}}, {.until_tokens = 7, .blend = {"e"}}};
          if constexpr (std::is_same_v<Type, ChoiceRef>)
            value.set(value.member, field.choices[value.get(value.member) == field.choices[0] ? 1 : 0]);
        },
        field.value);
  }
  EXPECT_EQ(differences(config, Config()).size(), static_cast<size_t>(n));
  const Config back = load_config({write(dump(config))}, {});
  EXPECT_EQ(differences(config, back), std::vector<std::string>());
  EXPECT_EQ(dump(back), dump(config));
}

TEST(Dump, SectionsInOrder) {
  const std::string text = dump(Config());
  EXPECT_TRUE(text.starts_with("[model]\nmodel_type = \"qwen3_moe\"\nvocab_size = 0\n"));
  EXPECT_NE(text.find("\n\n[router]\nkind = \"baseline\"\nwindow = 0\nscale = true\n"), std::string::npos);
  EXPECT_NE(text.find("\n\n[checkpoint]\nevery = 200\nkeep = 2\nasynchronous = true\n"), std::string::npos);
  EXPECT_NE(text.find("\nkeep_best = false\n\n[parallel]\n"), std::string::npos);
}

TEST(Differences, ShowBothValues) {
  Config a, b;
  b.router.window = 3;
  b.optim.lr = 0.5;
  EXPECT_EQ(differences(a, b), (std::vector<std::string>{"router.window: 0 -> 3", "optim.lr: 0.001 -> 0.5"}));
}

TEST(FieldHelp, SectionsAndKeys) {
  const std::string text = field_help();
  EXPECT_NE(text.find("\n[router]\n  --router.kind "), std::string::npos);
  EXPECT_NE(text.find("  --router.window                     integer   0\n"
                      "      number of most recent visible layers in the history; 0: all [>= 0]\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("      number of routed experts E per MoE layer [>= 1] (also "
                      "model.n_routed_experts) (also model.num_local_experts)\n"),
            std::string::npos);
  EXPECT_NE(text.find("      number of optimizer steps [>= 1] (may change on resume)\n"), std::string::npos);
}

}  // namespace config_test
}  // namespace hero
