#include "data/tokenize.h"

#include <set>
#include <vector>

#include "data/files.h"
#include "data/indexed_dataset.h"
#include "data/tokenizer_training.h"
#include "io/sha256.h"
#include "tokenizer/generated_text.h"
#include "tokenizer/tokenizer.h"

namespace hero {
namespace tokenize_test {

class Tokenize : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const TemporaryFolder folder;
    TokenizerTraining options;
    options.corpus.inputs = {folder.write("code.py", plain_code(300))};
    options.vocab_size = 350;
    model_ = train_tokenizer(options).model;
  }
  Tokenize() { folder_.write("t.model", model_); }

  TokenizeOptions options(const std::vector<std::string>& inputs, const std::string& out) const {
    TokenizeOptions options;
    options.corpus.inputs = inputs;
    options.tokenizer = folder_ / "t.model";
    options.out = folder_ / out;
    return options;
  }
  // The texts of a split; checks that EOS is only at the end of each document.
  std::vector<std::string> texts(const std::string& prefix) const {
    const IndexedDataset data(folder_ / prefix);
    const Tokenizer tokenizer(model_, "m");
    std::vector<std::string> found;
    for (int64_t d = 0; d < data.documents(); ++d) {
      std::vector<int64_t> wide(data.document_tokens(d));
      data.read(data.document_begin(d), static_cast<int64_t>(wide.size()), wide.data());
      const std::vector<int32_t> ids(wide.begin(), wide.end());
      EXPECT_EQ(std::count(ids.begin(), ids.end(), 1), 1);
      EXPECT_EQ(ids.back(), 1);
      found.push_back(tokenizer.decode(ids));
    }
    return found;
  }

  static inline std::string model_;
  TemporaryFolder folder_;
};

TEST_F(Tokenize, SplitsAreDisjointCompleteAndCounted) {
  std::string lines;
  std::multiset<std::string> expected;
  int64_t empty = 0, bytes = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::string text = edge_case_text(i);
    lines += json_line(text);
    empty += text.empty();
    bytes += static_cast<int64_t>(text.size());
    if (!text.empty()) expected.insert(text);
  }
  auto settings = options({folder_.write("a.jsonl", lines)}, "out/set");
  settings.valid_fraction = 0.1;
  const auto result = tokenize(settings);
  const auto train = texts("out/set-train"), valid = texts("out/set-valid");
  std::multiset<std::string> found(train.begin(), train.end());
  found.insert(valid.begin(), valid.end());
  EXPECT_TRUE(found == expected);
  EXPECT_EQ(result.empty, empty);
  const auto documents = static_cast<double>(expected.size());
  EXPECT_NEAR(static_cast<double>(valid.size()), 0.1 * documents, 4 * std::sqrt(0.09 * documents));

  for (const std::string prefix : {"out/set", "out/set-train", "out/set-valid.bin"}) {
    const auto files = read_token_files(folder_ / prefix);
    ASSERT_TRUE(files) << prefix;
    EXPECT_EQ(files->vocab_size, 350);
    EXPECT_EQ(files->eos_id, 1);
    EXPECT_EQ(files->tokenizer_sha256, sha256(model_));
    EXPECT_EQ(contents(files->tokenizer), model_);
    EXPECT_EQ(files->splits.at("train").documents, static_cast<int64_t>(train.size()));
    EXPECT_EQ(files->splits.at("valid").documents, static_cast<int64_t>(valid.size()));
    EXPECT_EQ(files->splits.at("train").tokens, IndexedDataset(folder_ / "out/set-train").tokens());
    EXPECT_EQ(files->splits.at("train").bytes + files->splits.at("valid").bytes, bytes);
  }
}

TEST_F(Tokenize, SameBytesForAnyNumberOfWorkers) {
  std::string lines;
  for (int i = 0; i < 3000; ++i) lines += json_line(edge_case_text(i) + plain_code(i % 40));
  const std::vector<std::string> inputs = {folder_.write("a.jsonl", lines),
                                           folder_.write("b.py", plain_code(9000))};
  for (const int workers : {1, 2, 5}) {
    auto settings = options(inputs, "w" + std::to_string(workers));
    settings.workers = workers;
    tokenize(settings);
    for (const std::string ending : {"-train.bin", "-train.idx", "-valid.bin", "-valid.idx"}) {
      EXPECT_TRUE(contents(folder_ / ("w" + std::to_string(workers) + ending)) ==
                  contents(folder_ / ("w1" + ending)))
          << workers << ending;
    }
  }
}

TEST_F(Tokenize, EverySplitHasADocument) {
  for (int documents = 1; documents <= 12; ++documents) {
    for (const double fraction : {0.001, 0.5, 0.999}) {
      std::string lines;
      for (int i = 0; i < documents; ++i) lines += json_line("document " + std::to_string(i));
      auto settings = options({folder_.write("few.jsonl", lines)}, "few");
      settings.valid_fraction = fraction;
      settings.overwrite = true;
      const auto splits = tokenize(settings).files.splits;
      EXPECT_GE(splits.at("train").documents, 1);
      EXPECT_EQ(splits.contains("valid"), documents > 1);
      EXPECT_EQ(std::filesystem::exists(folder_ / "few-valid.idx"), documents > 1);
      std::set<std::string> found;
      for (const auto& [name, counts] : splits) {
        for (const auto& text : texts("few-" + name)) found.insert(text);
      }
      EXPECT_EQ(found.size(), static_cast<std::size_t>(documents));
    }
  }
}

TEST_F(Tokenize, FractionZeroRemovesOldValidationSet) {
  auto settings = options({folder_.write("two.jsonl", json_line("a") + json_line("b"))}, "two");
  tokenize(settings);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "two-valid.bin"));
  settings.valid_fraction = 0;
  settings.overwrite = true;
  // Loss masks of the replaced tokens.
  const std::string masks[] = {"two-train-mask.bin", "two-train-mask.idx", "two-valid-mask.bin",
                               "two-valid-mask.idx"};
  for (const std::string& mask : masks) folder_.write(mask, "x");
  EXPECT_FALSE(tokenize(settings).files.splits.contains("valid"));
  for (const std::string& mask : masks) EXPECT_FALSE(std::filesystem::exists(folder_ / mask)) << mask;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "two-valid.bin"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "two-valid.idx"));
  EXPECT_EQ(texts("two-train").size(), 2u);
}

TEST_F(Tokenize, ReplacesFilesOnlyWithOverwrite) {
  auto settings = options({folder_.write("a.jsonl", json_line("a") + json_line("b"))}, "set");
  const auto expect_rejected = [&](const std::string& name) {
    EXPECT_EQ(
        user_error([&] { tokenize(settings); }),
        folder_ / name + ": exists, expected a new --out, or --overwrite to replace the files of this one");
  };
  folder_.write("set.model", model_);  // the same tokenizer
  tokenize(settings);
  for (const std::string name :
       {"set-train.bin", "set-train.idx", "set-valid.bin", "set-valid.idx", "set.json"}) {
    expect_rejected(name);
    std::filesystem::remove(folder_ / name);
  }
  const auto mine = folder_.write("set.model", "another tokenizer");
  expect_rejected("set.model");
  EXPECT_EQ(contents(mine), "another tokenizer");
  settings.overwrite = true;
  tokenize(settings);
  EXPECT_EQ(contents(mine), model_);
  EXPECT_EQ(texts("set-train").size(), 1u);
}

TEST_F(Tokenize, RejectsInvalidInputAndWritesNothing) {
  const auto good = folder_.write("good.jsonl", json_line("a") + json_line("b"));
  const auto before = [&] {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
      names.insert(entry.path().filename());
    return names;
  };
  const auto bad = folder_.write("bad.jsonl", json_line("a") + "{\"text\": 1}\n" + json_line("b") + "[]\n");
  const auto blank = folder_.write("blank.jsonl", "{\"text\": \"\"}\n");
  const auto names = before();
  EXPECT_EQ(user_error([&] { tokenize(options({good, bad}, "x")); }),
            bad + ": line 2, byte 13: field \"text\" is number, expected a string");
  EXPECT_EQ(user_error([&] { tokenize(options({blank}, "x")); }),
            blank + ": no text found, expected text to tokenize");
  auto settings = options({good}, "x");
  settings.valid_fraction = 1;
  EXPECT_EQ(user_error([&] { tokenize(settings); }),
            "--valid-fraction 1.000000: expected 0 or more and less than 1");
  settings = options({good}, "x");
  settings.tokenizer = good;
  EXPECT_NE(user_error([&] { tokenize(settings); }).find("found invalid JSON"), std::string::npos);
  EXPECT_EQ(before(), names);
  EXPECT_EQ(user_error([&] {
              tokenize(options({good}, "good.jsonl/x"));
            }).find(folder_ / "good.jsonl/x: cannot create folder "),
            0u);
}

TEST_F(Tokenize, IgnoresJsonFilesOfOtherPrograms) {
  folder_.write("corpus.json", "{\"text\": \"a corpus in Megatron's loose JSON\"}\n");
  EXPECT_FALSE(read_token_files(folder_ / "corpus"));
  EXPECT_FALSE(read_token_files(folder_ / "none-train"));
  const auto broken = folder_.write("own.json", "{\"format\": \"hero token files 1\", \"vocab_size\": 3}");
  EXPECT_EQ(user_error([&] { read_token_files(folder_ / "own-train"); }),
            broken + ": tokenizer: not found, expected this key");
}

TEST_F(Tokenize, RejectsATokenizerInAnotherFolder) {
  for (const std::string name : {"../own.model", "/etc/own.model", "..", "", "a\\\\b"}) {
    const auto card =
        folder_.write("own.json", "{\"format\": \"hero token files 1\", \"tokenizer\": \"" + name +
                                      "\", \"tokenizer_sha256\": \"\", \"vocab_size\": 3, "
                                      "\"eos_id\": 1, \"splits\": {}}");
    const auto error = user_error([&] { read_token_files(folder_ / "own"); });
    EXPECT_EQ(error.find(card + ": tokenizer: found \"" + name + "\""), 0u) << error;
    EXPECT_NE(error.find("expected the name of a file in the same folder"), error.npos) << error;
  }
}

TEST_F(Tokenize, RejectsTwoTokenizersOfOnePrefix) {
  const auto settings = options({folder_.write("two.jsonl", json_line("a") + json_line("b"))}, "two");
  tokenize(settings);
  const auto other = folder_.write("two.tokenizer.json", "{}");
  const std::string message = (folder_ / "two.model") + " and " + other + ": found two tokenizers";
  EXPECT_EQ(user_error([&] { read_token_files(folder_ / "two"); }).find(message), 0u);
  std::filesystem::remove(folder_ / "two.model");
  EXPECT_EQ(user_error([&] { tokenize(settings); }).find(message), 0u);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "two.model"));
}

}  // namespace tokenize_test
}  // namespace hero
