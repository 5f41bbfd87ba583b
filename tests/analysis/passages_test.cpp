// The text that an analysis reads.
#include "analysis/passages.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "analysis/benchmark_rows.h"
#include "data/indexed_writer.h"
#include "hf/temporary_folder.h"
#include "io/error.h"
#include "tokenizer/small_tokenizer.h"

namespace {

using hero::test::error_of;
using hero::test::TemporaryFolder;
using hero::test::write_bytes;
using nlohmann::json;

TEST(BenchmarkRows, TextOfEveryKind) {
  const auto text = [](const char* row) { return hero::row_text(json::parse(row), "f:1"); };
  EXPECT_EQ(text(R"({"text": "all of it", "id": 3})"), "all of it");
  EXPECT_EQ(text(R"({"query": "2 + 2 is", "choices": ["3", "4"], "gold": 1})"), "2 + 2 is 4");
  EXPECT_EQ(text(R"({"query": "2 + 2?", "answer": "4"})"), "2 + 2?\n4");
  EXPECT_EQ(text(R"({"query": "2 + 2?", "answer": "4", "solution": "It is 4."})"), "2 + 2?\nIt is 4.");
  EXPECT_EQ(text(R"({"prompt": "def f():\n", "canonical_solution": "    return 1\n", "test": ""})"),
            "def f():\n    return 1\n");
}

TEST(BenchmarkRows, RefusesRowsWithFileLineAndField) {
  const auto refusal = [](const char* row) {
    return error_of<hero::UserError>([&] { hero::row_text(json::parse(row), "f.jsonl:7"); });
  };
  EXPECT_EQ(refusal("[1]"), "f.jsonl:7: found [1], expected a JSON object");
  EXPECT_EQ(refusal(R"({"question": "?"})"),
            "f.jsonl:7: found none of the fields \"text\", \"query\" and \"prompt\", expected one");
  EXPECT_EQ(refusal(R"({"query": "?"})"),
            "f.jsonl:7: found \"query\" alone, expected \"choices\" and \"gold\", or \"answer\"");
  EXPECT_EQ(refusal(R"({"text": 5})"), "f.jsonl:7: text: found 5, expected a string");
  EXPECT_EQ(refusal(R"({"prompt": "x"})"),
            "f.jsonl:7: found no field \"canonical_solution\", expected a string");
  EXPECT_EQ(refusal(R"({"query": "?", "choices": [], "gold": 0})"),
            "f.jsonl:7: choices: found [], expected a list of strings");
  EXPECT_EQ(refusal(R"({"query": "?", "choices": ["a"]})"),
            "f.jsonl:7: gold: found nothing, expected the number of the right choice, 0 to 0");
  EXPECT_EQ(refusal(R"({"query": "?", "choices": ["a", "b"], "gold": 2})"),
            "f.jsonl:7: gold: found 2, expected the number of the right choice, 0 to 1");
  EXPECT_EQ(refusal(R"({"query": "?", "choices": ["a", 4], "gold": 1})"),
            "f.jsonl:7: choices: found 4, expected strings");
}

TEST(BenchmarkRows, LinesOfAFile) {
  const TemporaryFolder folder;
  const auto path = (folder / "some.jsonl").string();
  write_bytes(path, "{\"text\": \"one\"}\n\n{\"text\": \"two\"}\n");
  std::vector<std::string> texts;
  hero::for_each_row_text(path, [&](const std::string& text) { texts.push_back(text); });
  EXPECT_EQ(texts, (std::vector<std::string>{"one", "two"}));
  write_bytes(path, "{\"text\": \"one\"}\n{\"text\": \n");
  EXPECT_NE(error_of<hero::UserError>([&] {
              hero::for_each_row_text(path, [](const auto&) {});
            }).find("some.jsonl:2: byte 9: found no valid JSON"),
            std::string::npos);
}

// The tokens of a set, window by window.
std::vector<int64_t> targets(const hero::TokenSet& set, int64_t sequence) {
  std::vector<int64_t> all, window(sequence + 1);
  for (int64_t w = 0; w < set.windows; ++w) {
    const int64_t valid = set.read(w, window.data());
    if (w == 0) all.push_back(window[0]);
    EXPECT_EQ(all.back(), window[0]);
    all.insert(all.end(), window.begin() + 1, window.begin() + 1 + valid);
  }
  return all;
}

TEST(Passages, RowsFollowEachOtherWithTheEndToken) {
  const TemporaryFolder folder;
  write_bytes(folder / "tokenizer.json", hero::small_tokenizer_json().dump());  // the end token is 259
  const auto path = (folder / "task.jsonl").string();
  write_bytes(path, "{\"text\": \"Q\"}\n{\"query\": \"x\", \"choices\": [\"yz\"], \"gold\": 0}\n");
  const auto set = hero::open_token_set(path, folder.path(), 4, 260);
  EXPECT_EQ(set.name, "task");
  EXPECT_EQ(set.windows, 2);
  EXPECT_EQ(targets(set, 4), (std::vector<int64_t>{'Q', 259, 'x', ' ', 'y', 'z', 259}));
  EXPECT_NE(error_of<hero::UserError>([&] {
              hero::open_token_set(path, folder.path(), 4, 259);
            }).find("its tokenizer gives id 259, expected ids below model.vocab_size = 259"),
            std::string::npos);
  const TemporaryFolder bare;
  EXPECT_NE(error_of<hero::UserError>([&] {
              hero::open_token_set(path, bare.path(), 4, 260);
            }).find("holds no tokenizer.model and no tokenizer.json"),
            std::string::npos);
  write_bytes(path, "");
  EXPECT_NE(error_of<hero::UserError>([&] {
              hero::open_token_set(path, folder.path(), 4, 260);
            }).find("task.jsonl: found 0 tokens, expected at least 2"),
            std::string::npos);
}

TEST(Passages, TokenFilesAsEvaluationReadsThem) {
  const TemporaryFolder folder;
  hero::IndexedWriter writer((folder / "made").string(), hero::TokenType::u16);
  writer.add_document(std::vector<int32_t>{1, 2, 3});
  writer.add_document(std::vector<int32_t>{4, 5, 6, 7});
  writer.finish();
  const auto set = hero::open_token_set((folder / "made").string(), folder.path(), 3, 8);
  EXPECT_EQ(set.name, "made");
  EXPECT_FALSE(set.tokenizer);
  EXPECT_EQ(targets(set, 3), (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_NE(error_of<hero::UserError>([&] {
              hero::open_token_set((folder / "made").string(), folder.path(), 3, 7);
            }).find("made.bin"),
            std::string::npos);
}

TEST(Passages, OneTokenizerForAll) {
  hero::check_same_tokenizer({});
  hero::check_same_tokenizer({{"a", "1"}, {"b", "1"}});
  EXPECT_EQ(
      error_of<hero::UserError>([] { hero::check_same_tokenizer({{"a", "1"}, {"b", "1"}, {"c", "2"}}); }),
      "c: another tokenizer than a, expected token ids of one vocabulary");
}

// A set whose token t of window w is 100 w + t.
hero::TokenSet numbered(const std::string& name, int64_t windows, int64_t sequence) {
  return {.name = name, .windows = windows, .read = [=](int64_t window, int64_t* out) {
            for (int64_t t = 0; t <= sequence; ++t) out[t] = 100 * window + t;
            return window + 1 == windows ? sequence - 1 : sequence;
          }};
}

TEST(Passages, WindowsAreSharedOutAndSpread) {
  // 10 windows: 2 of the small set, 4 of each of the others.
  const hero::Passages passages({numbered("a", 9, 3), numbered("b", 2, 3), numbered("c", 100, 3)}, 3, 32);
  EXPECT_EQ(passages.names(), (std::vector<std::string>{"a", "b", "c"}));
  ASSERT_EQ(passages.windows(), 10);
  const auto first = passages.read(0, 10).inputs_BS.select(1, 0);
  EXPECT_TRUE(first.equal(at::tensor({0, 200, 400, 600, 0, 100, 0, 2500, 5000, 7500}, at::kLong)));
  EXPECT_EQ(hero::Passages({numbered("a", 9, 3), numbered("b", 2, 3)}, 3, 1).windows(), 2);
  EXPECT_EQ(hero::Passages({numbered("a", 9, 3), numbered("b", 2, 3)}, 3, 1000).windows(), 11);
}

TEST(Passages, TargetsBehindTheEndAreNotReal) {
  const hero::Passages passages({numbered("a", 2, 3)}, 3, 100);
  const auto batch = passages.read(0, 2);
  EXPECT_TRUE(batch.inputs_BS.equal(at::tensor({0, 1, 2, 100, 101, 102}, at::kLong).view({2, 3})));
  EXPECT_TRUE(batch.targets_T.equal(at::tensor({1, 2, 3, 101, 102, -1}, at::kLong)));
  EXPECT_TRUE(batch.real_T.equal(at::tensor({0, 1, 2, 3, 4}, at::kLong)));
}

}  // namespace
