#include "data/loss_mask.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "data/files.h"
#include "data/sampler.h"

namespace hero {
namespace loss_mask_test {

constexpr int64_t kSequence = 6, kEos = 0;

// An indexed dataset of u8 or u16, which IndexedWriter writes for tokens only.
void write_set(const TemporaryFolder& folder, const std::string& name,
               const std::vector<std::vector<int>>& documents, TokenType type) {
  std::string tokens, index("MMIDIDX\0\0", 9);
  const auto put = [&]<typename T>(T value) {
    index.append(reinterpret_cast<const char*>(&value), sizeof(T));
  };
  put(uint64_t{1});
  put(static_cast<uint8_t>(type));
  put(uint64_t{documents.size()});
  put(uint64_t{documents.size() + 1});
  for (const auto& document : documents) put(static_cast<int32_t>(document.size()));
  int64_t at = 0;
  for (const auto& document : documents) {
    put(at);
    at += std::ssize(document) * token_bytes(type);
    for (const int token : document) {
      tokens.push_back(static_cast<char>(token % 256));
      if (type == TokenType::u16) tokens.push_back(static_cast<char>(token / 256));
    }
  }
  for (size_t d = 0; d <= documents.size(); ++d) put(int64_t(d));
  folder.write(name + ".bin", tokens);
  folder.write(name + ".idx", index);
}

// Documents of distinct tokens from 1 without EOS. A token is trained on if it is a multiple of 3.
std::vector<std::vector<int>> write_documents(const TemporaryFolder& folder, int documents) {
  std::vector<std::vector<int>> tokens(documents), mask(documents);
  int next = 1;
  for (int d = 0; d < documents; ++d) {
    for (int i = 0; i < d % 9 + 1; ++i, ++next) {
      tokens[d].push_back(next);
      mask[d].push_back(next % 3 == 0);
    }
  }
  write_set(folder, "a-train", tokens, TokenType::u16);
  write_set(folder, "a-train-mask", mask, TokenType::u8);
  return tokens;
}

class LossMaskTest : public testing::TestWithParam<Packing> {};

TEST_P(LossMaskTest, MarksTargetsOfSamples) {
  const TemporaryFolder folder;
  const auto documents = write_documents(folder, 50);
  TokenStream stream(single_phase({{folder / "a"}}), kSequence, 1, 0, kEos, {GetParam(), /*loss_mask=*/true});
  TokenStream other(single_phase({{folder / "a"}}), kSequence, 1, 0, kEos, {GetParam(), /*loss_mask=*/true});
  constexpr int64_t kCount = 90, kEntries = kSequence + 1;  // more than an epoch
  std::vector<int64_t> tokens(kCount * kEntries), trained(kCount * kEntries);
  stream.read(0, kCount, {.tokens = tokens.data(), .trained = trained.data()});
  int64_t marked = 0;
  for (int64_t i = 0; i < kCount * kEntries; ++i) {
    if (i % kEntries == 0) continue;
    // An appended EOS token is trained on if the token before it is.
    const bool appended = tokens[i] == kEos && tokens[i - 1] != kEos;
    if (appended || tokens[i - 1] == tokens[i] - 1) {
      EXPECT_EQ(trained[i], tokens[i - appended] % 3 == 0) << i;
    }
    marked += trained[i];
  }
  EXPECT_GT(marked, 100);
  // Any range, also backward, and without an effect on read().
  EXPECT_EQ(other.trained_targets(0, kCount).front(), marked);
  int64_t sum = 0;
  for (int64_t first = kCount - 9; first >= 0; first -= 9) sum += other.trained_targets(first, 9).front();
  EXPECT_EQ(sum, marked);
  std::vector<int64_t> again(kCount * kEntries);
  other.read(0, kCount, {.tokens = again.data()});
  EXPECT_EQ(again, tokens);
}

// Module k predicts token i + k + 1 at position i; the first row is the main model.
TEST_P(LossMaskTest, TargetsOfModules) {
  const TemporaryFolder folder;
  write_documents(folder, 50);
  constexpr int64_t kCount = 40, kEntries = kSequence + 1, kModules = 3;
  for (const bool own_document : {false, true}) {
    TokenStream stream(single_phase({{folder / "a"}}), kSequence, 1, 0, kEos,
                       {GetParam(), /*loss_mask=*/true});
    std::vector<int64_t> starts(kCount * kEntries), trained(kCount * kEntries);
    stream.read(5, kCount, {.tokens = nullptr, .starts = starts.data(), .trained = trained.data()});
    std::vector<int64_t> expected(kModules + 1);
    for (int64_t k = 0; k <= kModules; ++k) {
      for (int64_t sample = 0; sample < kCount; ++sample) {
        for (int64_t i = 0; i + k + 1 < kEntries; ++i) {
          const int64_t at = sample * kEntries + i;
          if (own_document && starts[at + k] != starts[at]) continue;
          expected[k] += trained[at + k + 1];
        }
      }
    }
    const auto found = stream.trained_targets(5, kCount, kModules, own_document);
    EXPECT_EQ(found, expected);
    EXPECT_GT(found[2], 0);
    EXPECT_GT(found[1], found[2]);
  }
}

INSTANTIATE_TEST_SUITE_P(, LossMaskTest, testing::Values(Packing::kConcat, Packing::kBestFit),
                         [](const auto& info) { return name_of(info.param); });

TEST(LossMask, WithoutMaskAllTargetsCount) {
  const TemporaryFolder folder;
  write_documents(folder, 50);
  TokenStream concat(single_phase({{folder / "a"}}), kSequence, 1, 0, kEos);
  EXPECT_EQ(concat.trained_targets(3, 5, 2),
            (std::vector<int64_t>{5 * kSequence, 5 * (kSequence - 1), 5 * (kSequence - 2)}));
}

// Worked by hand: documents of 1 to 9 tokens, with EOS 2 to 10, and samples of 7 entries.
TEST(LossMask, SummaryOfTheStream) {
  const TemporaryFolder folder;
  write_documents(folder, 9);
  TokenStream best_fit(single_phase({{folder / "a"}}), kSequence, 1, 0, kEos, {Packing::kBestFit, false});
  // Documents of 8, 9 and 10 tokens are split. Four pieces of 7 tokens; pieces of 6, 5, 4, 3 and 2 and the
  // rests 2, 3 and 4 in {6}, {5, 2}, {4, 3}, {4, 3}, {2}: 6 of 63 entries are padding.
  EXPECT_EQ(
      best_fit.summary(),
      std::vector<std::string>{(folder / "a-train") + ": 3 of 9 documents (33.3%) are split, padding 9.5%"});
  // 45 tokens: one sample with all of them, one without the last token, and samples of 2 tokens.
  const auto concat = [&](int64_t sequence) {
    return TokenStream(single_phase({{folder / "a"}}), sequence, 1, 0, -1).summary().front();
  };
  const std::string of = (folder / "a-train") + ": ", end = " are split, padding 0.0%";
  EXPECT_EQ(concat(44), of + "0 of 9 documents (0.0%)" + end);
  EXPECT_EQ(concat(43), of + "1 of 9 documents (11.1%)" + end);
  EXPECT_EQ(concat(1), of + "7 of 9 documents (77.8%)" + end);
}

TEST(LossMask, Errors) {
  const TemporaryFolder folder;
  const auto documents = write_documents(folder, 4);
  const std::string index = folder / "a-train-mask.idx";
  const auto error = [&] {
    return user_error(
        [&] { TokenStream(single_phase({{folder / "a"}}), 4, 0, 0, -1, {Packing::kConcat, true}); });
  };
  write_set(folder, "a-train-mask", {{1}, {1, 1}, {1, 1}, {1, 1, 1, 1}}, TokenType::u8);
  EXPECT_EQ(error(), index + ": found document 2 of 2 tokens, expected 3 as in " + (folder / "a-train") +
                         ".idx; tokenize again");
  write_set(folder, "a-train-mask", {{1}}, TokenType::u8);
  EXPECT_EQ(error(),
            index + ": found 1 documents, expected 4 as in " + (folder / "a-train") + ".idx; tokenize again");
  write_set(folder, "a-train-mask", documents, TokenType::u16);
  EXPECT_EQ(error(), index + ": found elements of type uint16, expected uint8");
  remove_loss_mask(folder / "a-train");
  EXPECT_EQ(error(), index +
                         ": not found, expected the loss mask for train.loss_mask = true; python -m "
                         "hero_moe.data tokenize writes one with --messages, or --prompt and --response");
}

TEST(LossMask, SequentialReaderMarksItsTokens) {
  const TemporaryFolder folder;
  write_documents(folder, 9);  // 45 tokens
  for (const int64_t sequence : {1, 4, 44, 100}) {
    SequentialReader reader(folder / "a-train", sequence, 0);
    EXPECT_FALSE(reader.has_mask());
    EXPECT_TRUE(reader.open_mask_if_present());
    std::vector<int64_t> tokens(sequence + 1), mask(sequence + 1, -1);
    for (int64_t i = 0; i < reader.windows(); ++i) {
      const int64_t valid = reader.read(i, tokens.data());
      reader.read_mask(i, mask.data());
      for (int64_t j = 0; j <= sequence; ++j)
        EXPECT_EQ(mask[j], j <= valid && tokens[j] % 3 == 0) << i << " " << j;
    }
    // Targets 2 to 45, of which every third is marked.
    for (int64_t windows = 1; windows <= reader.windows(); ++windows)
      EXPECT_EQ(reader.trained_targets(windows), (reader.targets(windows) + 1) / 3) << windows;
  }
  write_set(folder, "b", {{1, 2, 3}}, TokenType::u16);
  SequentialReader plain(folder / "b", 2, 0);
  EXPECT_FALSE(plain.open_mask_if_present());
}

}  // namespace loss_mask_test
}  // namespace hero
