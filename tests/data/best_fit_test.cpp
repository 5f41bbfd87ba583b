#include "data/best_fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "data/counter_random.h"
#include "data/files.h"
#include "data/indexed_writer.h"
#include "data/packed_dataset.h"

namespace hero {
namespace best_fit_test {

constexpr int64_t kSequence = 16, kEntries = kSequence + 1;

using Piece = BestFitPacking::Piece;

BestFitPacking packing_of(const std::vector<int64_t>& lengths, int64_t sequence = kSequence) {
  return {static_cast<int64_t>(lengths.size()), [lengths](int64_t d) { return lengths[d]; }, sequence};
}

std::vector<std::vector<Piece>> bins_of(const BestFitPacking& packing, uint64_t key) {
  const auto epoch = packing.epoch(key);
  std::vector<std::vector<Piece>> bins;
  for (int64_t i = 0; i < packing.bins(); ++i) bins.push_back(packing.pieces(epoch, i));
  return bins;
}

std::vector<int64_t> some_lengths(int64_t documents, int64_t longest) {
  std::vector<int64_t> lengths(documents);
  for (int64_t d = 0; d < documents; ++d)
    lengths[d] = static_cast<int64_t>(counter_bits(7, static_cast<uint64_t>(d)) % (longest + 1));
  return lengths;
}

// Every token but a document's first is a target once, and documents that fit are whole.
TEST(BestFit, EveryTargetOnceAndDocumentsWhole) {
  const auto lengths = some_lengths(500, 3 * kEntries);
  const auto packing = packing_of(lengths);
  for (const uint64_t key : {1, 2}) {
    std::vector<std::vector<int64_t>> targets(lengths.size());
    std::map<int64_t, int64_t> pieces;
    int64_t padding = 0;
    for (const auto& bin : bins_of(packing, key)) {
      int64_t used = 0;
      for (const Piece& piece : bin) {
        used += piece.count;
        ++pieces[piece.document];
        ASSERT_GE(piece.count, 2);
        for (int64_t i = 1; i < piece.count; ++i) targets[piece.document].push_back(piece.first + i);
      }
      ASSERT_GT(used, 0);
      ASSERT_LE(used, kEntries);
      padding += kEntries - used;
    }
    EXPECT_EQ(padding, packing.padding());
    int64_t split = 0;
    for (size_t d = 0; d < lengths.size(); ++d) {
      std::ranges::sort(targets[d]);
      std::vector<int64_t> want;
      for (int64_t i = 1; i < lengths[d]; ++i) want.push_back(i);
      ASSERT_EQ(targets[d], want) << "document " << d;
      const bool fits = lengths[d] >= 2 && lengths[d] <= kEntries;
      EXPECT_TRUE(!fits || pieces[static_cast<int64_t>(d)] == 1) << "document " << d;
      split += pieces[static_cast<int64_t>(d)] > 1;
    }
    EXPECT_EQ(split, packing.split_documents());
    EXPECT_GT(split, 100);
  }
}

// Worked by hand: 17 entries; pieces 12, 9, 8, 5, 4, 3 in bins {12, 5}, {9, 8}, {4, 3}.
TEST(BestFit, FullestBinWithRoom) {
  const auto packing = packing_of({3, 5, 12, 8, 4, 9});
  std::set<std::multiset<int64_t>> found;
  for (const auto& bin : bins_of(packing, 3)) {
    std::multiset<int64_t> counts;
    for (const Piece& piece : bin) counts.insert(piece.count);
    found.insert(counts);
  }
  EXPECT_EQ(found, (std::set<std::multiset<int64_t>>{{12, 5}, {9, 8}, {4, 3}}));
  EXPECT_EQ(packing.padding(), 10);
  EXPECT_EQ(packing.split_documents(), 0);
}

TEST(BestFit, LongDocuments) {
  // 40 tokens: 16 targets, 16 targets, 7 targets. 17 tokens: one full piece. 33: two.
  const auto packing = packing_of({40, 17, 33, 1, 0});
  std::vector<Piece> found;
  for (const auto& bin : bins_of(packing, 5)) {
    ASSERT_EQ(bin.size(), 1u);
    found.push_back(bin[0]);
  }
  std::ranges::sort(found, {}, [](const Piece& p) { return std::pair(p.document, p.first); });
  EXPECT_EQ(found,
            (std::vector<Piece>{{0, 0, 17}, {0, 16, 17}, {0, 32, 8}, {1, 0, 17}, {2, 0, 17}, {2, 16, 17}}));
  EXPECT_EQ(packing.padding(), 9);
  EXPECT_EQ(packing.split_documents(), 2);
}

// Short documents leave almost no padding: less than one bin of room per bin that is not full.
TEST(BestFit, PaddingOfShortDocuments) {
  const auto packing = packing_of(some_lengths(2000, 60), 512);
  const double entries = static_cast<double>(packing.bins() * 513);
  EXPECT_LT(static_cast<double>(packing.padding()) / entries, 0.01);
}

TEST(BestFit, EpochsDifferAndRepeat) {
  const auto packing = packing_of(some_lengths(300, 2 * kEntries));
  EXPECT_EQ(bins_of(packing, 1), bins_of(packing, 1));
  EXPECT_NE(bins_of(packing, 1), bins_of(packing, 2));
  const auto lengths_of = [&](uint64_t key) {
    std::vector<std::vector<int64_t>> all;
    for (const auto& bin : bins_of(packing, key)) {
      auto& counts = all.emplace_back();
      for (const Piece& piece : bin) counts.push_back(piece.count);
      std::ranges::sort(counts);
    }
    std::ranges::sort(all);
    return all;
  };
  EXPECT_EQ(lengths_of(1), lengths_of(2));
}

std::shared_ptr<const IndexedDataset> write_documents(const std::string& prefix,
                                                      const std::vector<int64_t>& lengths, TokenType type,
                                                      const std::function<int32_t(int64_t, int64_t)>& token) {
  IndexedWriter writer(prefix, type);
  for (size_t d = 0; d < lengths.size(); ++d) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < lengths[d]; ++i) ids.push_back(token(static_cast<int64_t>(d), i));
    writer.add_document(ids);
  }
  writer.finish();
  return std::make_shared<const IndexedDataset>(prefix);
}

TEST(BestFit, SamplesOfADataset) {
  const TemporaryFolder folder;
  const std::vector<int64_t> lengths = {5, 2, 40, 17, 1, 9, 0};
  const auto data = write_documents(folder / "a", lengths, TokenType::i32, [](int64_t d, int64_t i) {
    return static_cast<int32_t>(100 * (d + 1) + i);
  });
  constexpr int64_t kEos = 7;
  PackedDataset samples(data, kSequence, /*seed=*/1, kEos, Packing::kBestFit);
  // With EOS: 6, 3, 41, 18, 2, 10, 0 tokens. Pieces of 17: two of the third document, one of the fourth; the
  // rests are 10, 9, 6, 3, 2, 2, which fill the bins {10, 6}, {9, 3, 2, 2}.
  constexpr int64_t kSamples = 5;
  std::multiset<int64_t> targets;
  int64_t padding = 0;
  std::vector<int64_t> tokens(kEntries), trained(kEntries);
  for (int64_t i = 0; i < kSamples; ++i) {
    samples.sample(i, {.tokens = tokens.data(), .trained = trained.data()});
    EXPECT_EQ(trained[0], 0);
    for (int64_t j = 1; j < kEntries; ++j) {
      if (!trained[j]) continue;
      targets.insert(tokens[j]);
      EXPECT_TRUE(tokens[j] == tokens[j - 1] + 1 || tokens[j] == kEos) << "the token before belongs to it";
      EXPECT_NE(tokens[j - 1], kEos) << "the first token of a document is no target";
    }
    for (int64_t j = kEntries - 1; j > 0 && tokens[j] == kEos && tokens[j - 1] == kEos; --j) ++padding;
    std::vector<int64_t> only(kEntries);
    samples.sample(i, {.tokens = nullptr, .trained = only.data()});
    EXPECT_EQ(only, trained);
  }
  EXPECT_EQ(padding, 1 + 1);
  std::multiset<int64_t> want;
  for (size_t d = 0; d < lengths.size(); ++d) {
    for (int64_t i = 1; i < lengths[d]; ++i) want.insert(100 * (static_cast<int64_t>(d) + 1) + i);
    if (lengths[d] > 0) want.insert(kEos);
  }
  EXPECT_EQ(targets, want);
  const auto summary = samples.summary();
  EXPECT_EQ(summary.documents, 6);
  EXPECT_EQ(summary.split, 2);
  EXPECT_NEAR(summary.padding, 2.0 / (5 * 17), 1e-12);
}

TEST(BestFit, DatasetWithoutTargets) {
  const TemporaryFolder folder;
  const auto data =
      write_documents(folder / "a", {1, 1, 0}, TokenType::i32, [](int64_t, int64_t) { return 3; });
  EXPECT_EQ(user_error([&] { PackedDataset(data, kSequence, 1, -1, Packing::kBestFit); }),
            (folder / "a.bin") +
                ": 2 tokens in 3 documents, expected at least one document of 2 tokens, an input "
                "and its target");
}

}  // namespace best_fit_test
}  // namespace hero
