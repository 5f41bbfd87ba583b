// Benchmark rows and token windows of an analysis.
#include "analysis/token_windows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "analysis/benchmark_rows.h"
#include "data/indexed_writer.h"
#include "hf/temporary_folder.h"
#include "io/error.h"
#include "tokenizer/small_tokenizer.h"

namespace token_windows_test {

using hero::test::error_of;
using hero::test::TemporaryFolder;
using hero::test::write_bytes;
using nlohmann::json;

TEST(BenchmarkRows, TextOfAllRowKinds) {
  const auto text = [](const char* row) { return hero::row_text(json::parse(row), "f:1"); };
  EXPECT_EQ(text(R"({"text": "all of it", "id": 3})"), "all of it");
  EXPECT_EQ(text(R"({"query": "2 + 2 is", "choices": ["3", "4"], "gold": 1})"), "2 + 2 is 4");
  EXPECT_EQ(text(R"({"query": "2 + 2?", "answer": "4"})"), "2 + 2?\n4");
  EXPECT_EQ(text(R"({"query": "2 + 2?", "answer": "4", "solution": "It is 4."})"), "2 + 2?\nIt is 4.");
  EXPECT_EQ(text(R"({"prompt": "def f():\n", "canonical_solution": "    return 1\n", "test": ""})"),
            "def f():\n    return 1\n");
}

TEST(BenchmarkRows, RejectsInvalidRowsWithFileLineAndField) {
  const auto row_error = [](const char* row) {
    return error_of<hero::UserError>([&] { hero::row_text(json::parse(row), "f.jsonl:7"); });
  };
  EXPECT_EQ(row_error("[1]"), "f.jsonl:7: found [1], expected a JSON object");
  EXPECT_EQ(row_error(R"({"question": "?"})"),
            "f.jsonl:7: found none of the fields \"text\", \"query\" and \"prompt\", expected one");
  EXPECT_EQ(row_error(R"({"query": "?"})"),
            "f.jsonl:7: found \"query\" alone, expected \"choices\" and \"gold\", or \"answer\"");
  EXPECT_EQ(row_error(R"({"text": 5})"), "f.jsonl:7: text: found 5, expected a string");
  EXPECT_EQ(row_error(R"({"prompt": "x"})"),
            "f.jsonl:7: found no field \"canonical_solution\", expected a string");
  EXPECT_EQ(row_error(R"({"query": "?", "choices": [], "gold": 0})"),
            "f.jsonl:7: choices: found [], expected a list of strings");
  EXPECT_EQ(row_error(R"({"query": "?", "choices": ["a"]})"),
            "f.jsonl:7: gold: found nothing, expected the index of the correct choice, 0 to 0");
  EXPECT_EQ(row_error(R"({"query": "?", "choices": ["a", "b"], "gold": 2})"),
            "f.jsonl:7: gold: found 2, expected the index of the correct choice, 0 to 1");
  EXPECT_EQ(row_error(R"({"query": "?", "choices": ["a", 4], "gold": 1})"),
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
            }).find("some.jsonl:2: byte 9: found invalid JSON"),
            std::string::npos);
}

// All tokens of a dataset, window by window.
std::vector<int64_t> targets(const hero::TokenDataset& dataset, int64_t sequence) {
  std::vector<int64_t> all, window(sequence + 1);
  for (int64_t w = 0; w < dataset.windows; ++w) {
    const int64_t valid = dataset.read(w, window.data());
    if (w == 0) all.push_back(window[0]);
    EXPECT_EQ(all.back(), window[0]);
    all.insert(all.end(), window.begin() + 1, window.begin() + 1 + valid);
  }
  return all;
}

// The document starts of every window.
std::vector<int64_t> starts(const hero::TokenDataset& dataset, int64_t sequence) {
  std::vector<int64_t> all, window(sequence + 1);
  for (int64_t w = 0; w < dataset.windows; ++w) {
    dataset.read_starts(w, window.data());
    all.insert(all.end(), window.begin(), window.end());
  }
  return all;
}

TEST(TokenWindows, RowsAreSeparatedByEos) {
  const TemporaryFolder folder;
  write_bytes(folder / "tokenizer.json", hero::small_tokenizer_json().dump());  // EOS is 259
  const auto path = (folder / "task.jsonl").string();
  write_bytes(path, "{\"text\": \"Q\"}\n{\"query\": \"x\", \"choices\": [\"yz\"], \"gold\": 0}\n");
  const auto dataset = hero::open_token_dataset(path, folder.path(), 4, 260);
  EXPECT_EQ(dataset.name, "task");
  EXPECT_EQ(dataset.windows, 2);
  EXPECT_EQ(targets(dataset, 4), (std::vector<int64_t>{'Q', 259, 'x', ' ', 'y', 'z', 259}));
  EXPECT_EQ(starts(dataset, 4), (std::vector<int64_t>{0, 0, 2, 2, 2, 0, 0, 0, 3, 3}));  // padding apart
  EXPECT_NE(error_of<hero::UserError>([&] {
              hero::open_token_dataset(path, folder.path(), 4, 259);
            }).find("its tokenizer produced id 259, expected ids below model.vocab_size = 259"),
            std::string::npos);
  const TemporaryFolder bare;
  EXPECT_NE(error_of<hero::UserError>([&] {
              hero::open_token_dataset(path, bare.path(), 4, 260);
            }).find("has no tokenizer.model or tokenizer.json"),
            std::string::npos);
  write_bytes(path, "");
  EXPECT_NE(error_of<hero::UserError>([&] {
              hero::open_token_dataset(path, folder.path(), 4, 260);
            }).find("task.jsonl: found 0 tokens, expected at least 2"),
            std::string::npos);
}

TEST(TokenWindows, TokenFilesLikeEvaluation) {
  const TemporaryFolder folder;
  hero::IndexedWriter writer((folder / "made").string(), hero::TokenType::u16);
  writer.add_document(std::vector<int32_t>{1, 2, 3});
  writer.add_document(std::vector<int32_t>{4, 5, 6, 7});
  writer.finish();
  const auto dataset = hero::open_token_dataset((folder / "made").string(), folder.path(), 3, 8);
  EXPECT_EQ(dataset.name, "made");
  EXPECT_FALSE(dataset.tokenizer);
  EXPECT_EQ(targets(dataset, 3), (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(starts(dataset, 3), (std::vector<int64_t>{0, 0, 0, 3, 0, 0, 0, 0}));
  EXPECT_NE(error_of<hero::UserError>([&] {
              hero::open_token_dataset((folder / "made").string(), folder.path(), 3, 7);
            }).find("made.bin"),
            std::string::npos);
}

// A dataset whose token t of window w is 100 w + t.
hero::TokenDataset numbered(const std::string& name, int64_t windows, int64_t sequence) {
  return {.name = name,
          .windows = windows,
          .read =
              [=](int64_t window, int64_t* out) {
                for (int64_t t = 0; t <= sequence; ++t) out[t] = 100 * window + t;
                return window + 1 == windows ? sequence - 1 : sequence;
              },
          .read_starts = [=](int64_t window, int64_t* out) { std::fill_n(out, sequence + 1, window % 2); }};
}

TEST(TokenWindows, WindowsAreDistributedAndEvenlySpaced) {
  // 10 windows: 2 of the small dataset, 4 of each of the others.
  const hero::TokenWindows token_windows({numbered("a", 9, 3), numbered("b", 2, 3), numbered("c", 100, 3)}, 3,
                                         32);
  EXPECT_EQ(token_windows.names(), (std::vector<std::string>{"a", "b", "c"}));
  ASSERT_EQ(token_windows.windows(), 10);
  const auto first = token_windows.read(0, 10).inputs_BS.select(1, 0);
  EXPECT_TRUE(first.equal(at::tensor({0, 200, 400, 600, 0, 100, 0, 2500, 5000, 7500}, at::kLong)));
  EXPECT_TRUE(token_windows.read(3, 3).starts_BS.equal(
      at::tensor({0, 0, 0, 0, 0, 0, 1, 1, 1}, at::kLong).view({3, 3})));
  EXPECT_EQ(hero::TokenWindows({numbered("a", 9, 3), numbered("b", 2, 3)}, 3, 1).windows(), 2);
  EXPECT_EQ(hero::TokenWindows({numbered("a", 9, 3), numbered("b", 2, 3)}, 3, 1000).windows(), 11);
}

TEST(TokenWindows, TargetsAfterTheEndAreInvalid) {
  const hero::TokenWindows token_windows({numbered("a", 2, 3)}, 3, 100);
  const auto batch = token_windows.read(0, 2);
  EXPECT_TRUE(batch.inputs_BS.equal(at::tensor({0, 1, 2, 100, 101, 102}, at::kLong).view({2, 3})));
  EXPECT_TRUE(batch.targets_T.equal(at::tensor({1, 2, 3, 101, 102, -1}, at::kLong)));
  EXPECT_TRUE(batch.valid_T.equal(at::tensor({0, 1, 2, 3, 4}, at::kLong)));
}

}  // namespace token_windows_test
