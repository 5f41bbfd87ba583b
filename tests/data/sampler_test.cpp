#include "data/sampler.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "data/files.h"
#include "data/indexed_writer.h"

namespace hero {
namespace sampler_test {

constexpr int64_t kEos = 0;

// Documents of lengths 1, 2, ..., n with consecutive token ids from `first`, so that all tokens are distinct.
int64_t write_set(const std::string& prefix, int n, int32_t first, bool ended = false) {
  IndexedWriter writer(prefix, TokenType::i32);
  int32_t next = first;
  for (int d = 1; d <= n; ++d) {
    std::vector<int32_t> ids;
    for (int i = 0; i < d; ++i) ids.push_back(next++);
    if (ended) ids.push_back(kEos);
    writer.add_document(ids);
  }
  writer.finish();
  return next - first;
}

std::vector<int64_t> read(TokenStream& stream, int64_t sequence, int64_t first, int64_t count) {
  std::vector<int64_t> out(count * (sequence + 1));
  stream.read(first, count, {.tokens = out.data()});
  return out;
}

TEST(TokenStream, EpochHasEverySampleOnceAndKeepsDocumentsContiguous) {
  const TemporaryFolder folder;
  const int64_t sequence = 7, tokens = write_set(folder / "a", 40, 1);
  TokenStream stream(single_phase({{folder / "a"}}), sequence, 5, 0);
  const int64_t samples = (tokens - 1) / sequence;
  std::set<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const auto out = read(stream, sequence, epoch * samples, samples);
    // Chain the samples by their shared token: one path through the whole epoch.
    std::map<int64_t, int64_t> next;
    std::multiset<int64_t> targets;
    for (int64_t i = 0; i < samples; ++i) {
      const int64_t* const sample = &out[i * (sequence + 1)];
      for (int64_t j = 0; j < sequence; ++j) {
        EXPECT_TRUE(next.emplace(sample[j], sample[j + 1]).second) << "input " << sample[j] << " twice";
        targets.insert(sample[j + 1]);
      }
    }
    EXPECT_EQ(static_cast<int64_t>(next.size()), samples * sequence);
    for (const int64_t target : targets) EXPECT_EQ(targets.count(target), 1u);
    // Within a document, ids are consecutive: only document boundaries break the sequence.
    const auto breaks = std::count_if(next.begin(), next.end(),
                                      [](const auto& step) { return step.second != step.first + 1; });
    EXPECT_LE(breaks, 40);
    orders.insert(out);
  }
  EXPECT_EQ(orders.size(), 3u) << "two epochs have the same order";
}

TEST(TokenStream, DependsOnlyOnPosition) {
  const TemporaryFolder folder;
  write_set(folder / "a", 30, 1);
  write_set(folder / "b", 20, 10000);
  const std::vector<DataSource> sources = {{folder / "a", 0.7}, {folder / "b", 0.3}};
  const int64_t sequence = 5, total = 500;
  TokenStream whole(single_phase(sources), sequence, 3, 0);
  const auto expected = read(whole, sequence, 0, total);
  TokenStream pieces(single_phase(sources), sequence, 3, 0);
  std::vector<int64_t> found;
  for (int64_t at = 0, size = 1; at < total; at += size, size = size % 7 + 1) {
    const auto part = read(pieces, sequence, at, std::min(size, total - at));
    found.insert(found.end(), part.begin(), part.end());
  }
  EXPECT_EQ(found, expected);
  for (const int64_t at : {499, 0, 250, 249, 3, 170}) {
    TokenStream resumed(single_phase(sources), sequence, 3, 0);
    const auto from = expected.begin() + at * (sequence + 1);
    EXPECT_EQ(read(resumed, sequence, at, 1), std::vector<int64_t>(from, from + sequence + 1)) << at;
    EXPECT_EQ(read(pieces, sequence, at, 1), std::vector<int64_t>(from, from + sequence + 1)) << at;
  }
  TokenStream other(single_phase(sources), sequence, 4, 0);
  EXPECT_NE(read(other, sequence, 0, total), expected) << "the seed has no effect";
}

TEST(TokenStream, AppendsMissingEos) {
  const TemporaryFolder folder;
  write_set(folder / "open", 12, 1);
  write_set(folder / "ended", 12, 1, true);
  const int64_t sequence = 4;
  TokenStream open(single_phase({{folder / "open"}}), sequence, 1, 0, kEos),
      ended(single_phase({{folder / "ended"}}), sequence, 1, 0, kEos);
  TokenStream bare(single_phase({{folder / "open"}}), sequence, 1, 0);
  const int64_t samples = (12 * 13 / 2 + 12 - 1) / sequence;
  EXPECT_EQ(read(open, sequence, 0, samples), read(ended, sequence, 0, samples));
  const auto plain = read(bare, sequence, 0, (12 * 13 / 2 - 1) / sequence);
  EXPECT_EQ(std::count(plain.begin(), plain.end(), kEos), 0);
}

// Document d has d tokens with ids from first(d) on, all distinct; EOS follows a document's last token.
TEST(TokenStream, StartsAreThoseOfTheDocumentIndex) {
  const TemporaryFolder folder;
  const int documents = 25;
  for (const int64_t eos : {int64_t{-1}, kEos}) {
    write_set(folder / "a", documents, 1);
    write_set(folder / "b", documents, 10001);
    const int64_t sequence = 9, count = 150;
    TokenStream stream(single_phase({{folder / "a"}, {folder / "b"}}), sequence, 4, 0, eos);
    std::vector<int64_t> tokens(count * (sequence + 1)), starts(tokens.size());
    stream.read(3, count, {.tokens = tokens.data(), .starts = starts.data()});
    EXPECT_EQ(read(stream, sequence, 3, count), tokens);
    std::map<int64_t, int64_t> offset;  // of a token within its document
    for (const int64_t first : {1, 10001}) {
      int64_t id = first;
      for (int64_t d = 1; d <= documents; ++d) {
        for (int64_t i = 0; i < d; ++i) offset[id++] = i;
      }
    }
    int64_t began_earlier = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const int64_t j = static_cast<int64_t>(i) % (sequence + 1);
      const int64_t expected = tokens[i] == kEos ? (j > 0 ? starts[i - 1] : 0) : j - offset.at(tokens[i]);
      began_earlier += expected < 0;
      ASSERT_EQ(starts[i], std::max<int64_t>(0, expected)) << "token " << i << ", eos " << eos;
    }
    EXPECT_GT(began_earlier, 0);
  }
}

TEST(TokenStream, RejectsInvalidDatasets) {
  const TemporaryFolder folder;
  write_set(folder / "a", 3, 1);  // 6 tokens
  const auto error = [&](int64_t sequence, int64_t vocab_size) {
    return user_error([&] { TokenStream(single_phase({{folder / "a"}}), sequence, 0, vocab_size); });
  };
  EXPECT_EQ(
      error(6, 0),
      (folder / "a.bin") +
          ": 6 tokens in 3 documents, expected at least 7 (one sample of train.sequence = 6 and its last "
          "target)");
  EXPECT_EQ(error(5, 6),
            (folder / "a.bin") + ": document 2, token 2: id 6, expected 0 to 5 (a vocabulary of 6)");
  EXPECT_NO_THROW(TokenStream(single_phase({{folder / "a"}}), 5, 0, 7));
}

TEST(TokenStream, ReadsMetadataOfTheDataset) {
  const TemporaryFolder folder;
  for (const std::string name : {"a", "b"}) {
    write_set(folder / (name + "-train"), 3, 1);
    TokenFiles files;
    files.tokenizer = folder / (name + ".model");
    files.tokenizer_sha256 = name;
    files.vocab_size = 100;
    files.eos_id = kEos;
    files.splits["train"] = {3, 6, 24};
    write_token_files(folder / name, files);
  }
  TokenStream stream(single_phase({{folder / "a"}}), 5, 0, 100);
  ASSERT_TRUE(stream.token_files());
  EXPECT_EQ(stream.token_files()->tokenizer, folder / "a.model");
  EXPECT_EQ(user_error([&] { TokenStream(single_phase({{folder / "a"}}), 5, 0, 99); }),
            (folder / "a-train.bin") + ": found vocabulary size 100, expected at most model.vocab_size = 99");
  EXPECT_EQ(user_error([&] { TokenStream(single_phase({{folder / "a"}, {folder / "b"}}), 5, 0, 100); }),
            (folder / "b-train.bin") + ": tokenized with a different tokenizer (" + (folder / "b.model") +
                ") than the previous sources (" + (folder / "a.model") + ")");
  // The same tokenizer with another EOS token; a source without metadata before one with.
  const auto as_a = [&](int64_t eos) {
    TokenFiles files = *read_token_files(folder / "a");
    files.tokenizer = folder / "b.model";
    files.eos_id = eos;
    write_token_files(folder / "b", files);
  };
  as_a(kEos + 1);
  EXPECT_EQ(user_error([&] { TokenStream(single_phase({{folder / "a"}, {folder / "b"}}), 5, 0, 100); }),
            (folder / "b-train.bin") + ": documents end with EOS token " + std::to_string(kEos + 1) + " (" +
                (folder / "b.model") + "), expected " + std::to_string(kEos) +
                " as in the previous sources (" + (folder / "a.model") + ")");
  as_a(kEos);
  write_set(folder / "raw", 3, 1);
  TokenStream three(single_phase({{folder / "raw"}, {folder / "a"}, {folder / "b"}}), 5, 0, 100);
  EXPECT_EQ(three.token_files()->tokenizer, folder / "a.model");
  EXPECT_EQ(first_token_files({folder / "raw", folder / "b", folder / "a"})->tokenizer, folder / "b.model");
  EXPECT_FALSE(first_token_files({folder / "raw"}));
  write_set(folder / "a-train", 4, 1);
  EXPECT_EQ(user_error([&] { TokenStream(single_phase({{folder / "a"}}), 5, 0, 100); }),
            (folder / "a-train.idx") +
                ": 10 tokens in 4 documents, which does not match its .json file; tokenize again");
}

TEST(BlendedSampler, StaysWithinOneOfEveryShare) {
  const std::vector<std::vector<double>> blends = {{1},
                                                   {0.5, 0.5},
                                                   {0.7, 0.3},
                                                   {1, 2, 3, 4, 5, 6, 7},
                                                   {0.001, 0.999},
                                                   {90, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
                                                   {1e-3, 3.14, 2.72}};
  for (const auto& weights : blends) {
    BlendedSampler blend(weights);
    double sum = 0;
    for (const double weight : weights) sum += weight;
    std::vector<int64_t> counts(weights.size());
    for (int64_t n = 0; n < 20000; ++n) {
      const auto choice = blend.at(n);
      ASSERT_EQ(choice.index, counts[choice.source]++);
      for (std::size_t k = 0; k < weights.size(); ++k) {
        ASSERT_LT(std::abs(static_cast<double>(counts[k]) - weights[k] / sum * static_cast<double>(n + 1)),
                  1.0 + 1e-4)
            << n;
      }
    }
  }
}

TEST(SequentialReader, EveryTokenButTheFirstIsATargetOnce) {
  const TemporaryFolder folder;
  const int64_t tokens = write_set(folder / "a-valid", 9, 1);  // 45
  for (const int64_t sequence : {1, 4, 11, 44, 45, 100}) {
    const SequentialReader reader(folder / "a", sequence, 46);
    EXPECT_EQ(reader.windows(), (tokens - 1 + sequence - 1) / sequence);
    std::vector<int64_t> targets, window(sequence + 1, -1);
    for (int64_t i = 0; i < reader.windows(); ++i) {
      const int64_t valid = reader.read(i, window.data());
      for (int64_t j = 0; j < valid; ++j) {
        EXPECT_EQ(window[j + 1], window[j] + 1);
        targets.push_back(window[j + 1]);
      }
      for (int64_t j = valid + 1; j <= sequence; ++j) EXPECT_EQ(window[j], 0);
    }
    std::vector<int64_t> expected;
    for (int64_t id = 2; id <= tokens; ++id) expected.push_back(id);
    EXPECT_EQ(targets, expected);
  }
  write_set(folder / "one", 1, 1);
  EXPECT_EQ(user_error([&] { SequentialReader(folder / "one", 4, 0); }),
            (folder / "one.bin") + ": 1 tokens, expected at least 2");
}

TEST(SequentialReader, DocumentStarts) {
  const TemporaryFolder folder;
  const int64_t tokens = write_set(folder / "a-valid", 9, 1);
  const IndexedDataset data(folder / "a-valid");
  for (const int64_t sequence : {1, 4, 11, 44, 45, 100}) {
    const SequentialReader reader(folder / "a", sequence, 46);
    std::vector<int64_t> starts(sequence + 1, -1);
    for (int64_t i = 0; i < reader.windows(); ++i) {
      reader.read_starts(i, starts.data());
      const int64_t begin = i * sequence;
      for (int64_t j = 0; j <= sequence; ++j) {
        int64_t document = 0;
        while (begin + j < tokens && data.document_begin(document + 1) <= begin + j) ++document;
        const int64_t start = begin + j < tokens ? data.document_begin(document) : tokens;
        EXPECT_EQ(starts[j], std::max<int64_t>(start - begin, 0)) << i << " " << j;
      }
    }
  }
}

TEST(ParseSources, WeightsAndPrefixes) {
  const auto one = parse_sources({"runs/a:b"});
  EXPECT_EQ(one.at(0).prefix, "runs/a:b");
  EXPECT_EQ(one.at(0).weight, 1);
  const auto two = parse_sources({"0.25:a", "3:b:c"});
  EXPECT_EQ(two.at(0).weight, 0.25);
  EXPECT_EQ(two.at(0).prefix, "a");
  EXPECT_EQ(two.at(1).weight, 3);
  EXPECT_EQ(two.at(1).prefix, "b:c");
  EXPECT_EQ(user_error([] { parse_sources({"0:a"}); }),
            "--data 0:a: expected a weight above 0 before the ':'");
  EXPECT_EQ(user_error([] { parse_sources({"inf:a"}); }),
            "--data inf:a: expected a weight above 0 before the ':'");
  EXPECT_EQ(user_error([] { parse_sources({"1e308:a", "1e308:b"}); }),
            "--data: found weights with an infinite sum, expected smaller ones");
  EXPECT_EQ(user_error([] { parse_sources({"1:"}); }), "--data \"1:\": expected PREFIX or WEIGHT:PREFIX");
  EXPECT_EQ(user_error([] { parse_sources({}); }), "--data: found nothing, expected PREFIX or WEIGHT:PREFIX");
  EXPECT_EQ(user_error([] { parse_sources({"1:a", "b"}); }),
            "--data: 1 of 2 sources have a weight, expected all (WEIGHT:PREFIX) or none");
}

}  // namespace sampler_test
}  // namespace hero
