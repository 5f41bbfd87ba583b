#include "tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <vector>

#include "data/files.h"
#include "tokenizer/generated_text.h"
#include "tokenizer/small_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace hero {
namespace bpe_tokenizer_test {

using nlohmann::json;
using Ids = std::vector<int32_t>;

Tokenizer open(const json& file) { return {file.dump(), "t.json"}; }

std::string open_error(const json& file) {
  return user_error([&] { open(file); });
}

TEST(BpeTokenizer, MergesByRankThenLeftmost) {
  const auto tokenizer = open(small_tokenizer_json());
  EXPECT_EQ(tokenizer.encode("abcab"), (Ids{257, 256}));
  EXPECT_EQ(tokenizer.encode("aab b a"), (Ids{'a', 256, ' ', 'b', 258}));
  EXPECT_EQ(tokenizer.encode(" ab"), (Ids{' ', 256}));  // a+b has a lower rank than space+a
  EXPECT_EQ(tokenizer.encode(""), Ids{});
  EXPECT_EQ(tokenizer.vocab_size(), 260);
  EXPECT_EQ(tokenizer.eos_id(), 259);
  EXPECT_EQ(tokenizer.piece(258), "\u0120a");
  EXPECT_EQ(tokenizer.bytes(258), " a");
  EXPECT_EQ(tokenizer.bytes(0xE4), "\xE4");
  EXPECT_EQ(tokenizer.bytes(259), "");
  EXPECT_STREQ(tokenizer.file_name(), "tokenizer.json");
  const auto pairs = open(small_tokenizer_json({{"a", "a"}}));
  EXPECT_EQ(pairs.encode("aaaaa"), (Ids{256, 256, 'a'}));
}

TEST(BpeTokenizer, LongWordsMergeLikeShortOnes) {
  // Random merges: a part of 60 bytes has the same ids alone and in a word of thousands of bytes.
  std::vector<BpeMerges::Merge> merges;
  std::array<int32_t, 256> bytes;
  for (int i = 0; i < 256; ++i) bytes[i] = i;
  RandomStream rng(5);
  int32_t next = 256;
  for (int i = 0; i < 400; ++i) {
    const auto part = [&] {
      return rng.below(2) ? static_cast<int32_t>('a' + rng.below(3))
                          : 'a' + static_cast<int32_t>(rng.below(next - 'a'));
    };
    const auto left = part(), right = part();
    merges.push_back({left, right, next++});
  }
  const BpeMerges bpe(bytes, merges, -1, false);
  for (int round = 0; round < 300; ++round) {
    std::string word;
    for (uint64_t i = 30 + rng.below(30); i > 0; --i) word += static_cast<char>('a' + rng.below(3));
    Ids alone, joined, expected;
    bpe.encode(word, alone);
    // "#" has no merges, so each part of the long word is encoded separately.
    std::string many;
    for (int i = 0; i < 50; ++i) {
      many += word + "#";
      expected.insert(expected.end(), alone.begin(), alone.end());
      expected.push_back('#');
    }
    bpe.encode(many, joined);
    ASSERT_EQ(joined, expected) << word;
  }
}

TEST(BpeTokenizer, RoundTrip) {
  const auto tokenizer = open(small_tokenizer_json());
  ASSERT_TRUE(tokenizer.lossless());
  Tokenizer::Cache cache;
  for (uint64_t i = 0; i < 3000; ++i) {
    const std::string text = edge_case_text(i);
    Ids ids;
    tokenizer.encode(text, ids, cache);
    ASSERT_EQ(tokenizer.decode(ids), text) << "text " << i;
    ASSERT_EQ(tokenizer.encode(text), ids) << "cached ids differ for text " << i;
  }
}

TEST(BpeTokenizer, DecodeOmitsSpecialTokensAndReplacesInvalidUtf8) {
  auto file = small_tokenizer_json();
  file["added_tokens"].push_back(added_token(260, "<think>"));
  const auto tokenizer = open(file);
  EXPECT_EQ(tokenizer.encode("a<|endoftext|><think>b"), (Ids{'a', 259, 260, 'b'}));
  EXPECT_EQ(tokenizer.decode(Ids{'a', 259, 260, 'b'}), "a<think>b");
  EXPECT_EQ(tokenizer.decode(Ids{0xE2, 0x82, 'x', 0xFF, 0xE2, 0x82, 0xAC}), "\uFFFDx\uFFFD\u20AC");
  EXPECT_EQ(tokenizer.decode(Ids{0xF0, 0x9F, 0xF0, 0x80, 0xED, 0xA0}), "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(user_error([&] { tokenizer.decode(Ids{261}); }),
            "token id 261 is outside the tokenizer's vocabulary, expected 0 to 260");
}

TEST(BpeTokenizer, IdsMayHaveGaps) {
  auto file = small_tokenizer_json();
  file["model"]["vocab"]["abc"] = 1000;
  file["added_tokens"] = json::array();
  const auto tokenizer = open(file);
  EXPECT_EQ(tokenizer.vocab_size(), 1001);
  EXPECT_EQ(tokenizer.encode("abc"), Ids{1000});
  EXPECT_EQ(tokenizer.piece(500), "");
  EXPECT_EQ(tokenizer.decode(Ids{500, 'a'}), "a");
  EXPECT_EQ(tokenizer.eos_id(), -1);
}

TEST(BpeTokenizer, IgnoreMerges) {
  auto file = small_tokenizer_json();
  file["model"]["vocab"]["\u0120abc"] = 259;
  file["added_tokens"] = json::array();
  EXPECT_EQ(open(file).encode("abc abc"), (Ids{257, ' ', 257}));
  file["model"]["ignore_merges"] = true;
  EXPECT_EQ(open(file).encode("abc abc"), (Ids{257, 259}));
}

TEST(BpeTokenizer, BytesWithoutPiece) {
  auto file = small_tokenizer_json();
  file["model"]["vocab"].erase("x");
  file["added_tokens"] = json::array();
  EXPECT_EQ(open(file).encode("axxb"), (Ids{256}));  // dropped, as in tokenizers
  EXPECT_FALSE(open(file).lossless());
  file["model"]["unk_token"] = "?";
  EXPECT_EQ(open(file).encode("axxb"), (Ids{'a', '?', '?', 'b'}));
  file["model"]["fuse_unk"] = true;
  EXPECT_EQ(open(file).encode("axxb"), (Ids{'a', '?', 'b'}));
  file["model"]["unk_token"] = "<none>";
  EXPECT_EQ(open_error(file),
            "t.json: model.unk_token: found \"<none>\", expected a piece of model.vocab, which does not "
            "cover all bytes");
}

TEST(BpeTokenizer, NormalizesLikeUnicode9) {
  auto file = small_tokenizer_json();
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", json::array({{{"type", "NFC"}}})}};
  const auto nfc = open(file);
  EXPECT_FALSE(nfc.lossless());
  EXPECT_EQ(nfc.decode(nfc.encode("e\u0323\u0301")), "\u1EB9\u0301");
  EXPECT_EQ(nfc.decode(nfc.encode("\u1100\u1161\u11A8")), "\uAC01");
  // U+1AC1 is a combining mark of Unicode 14, so it is not reordered.
  EXPECT_EQ(nfc.decode(nfc.encode("e\u1AC1\u0323")), "e\u1AC1\u0323");
  file["normalizer"] = {{"type", "Sequence"},
                        {"normalizers", json::array({{{"type", "NFKC"}}, {{"type", "Lowercase"}}})}};
  const auto lower = open(file);
  EXPECT_EQ(lower.decode(lower.encode("\uFB01 \u0130A\u03A3")), "fi i\u0307a\u03C3");
}

TEST(BpeTokenizer, EosTokens) {
  const TemporaryFolder folder;
  auto file = small_tokenizer_json();
  file["added_tokens"].push_back(added_token(260, "</s>", true));
  const std::string path = folder.write("tokenizer.json", file.dump());
  EXPECT_EQ(Tokenizer(folder.path()).eos_id(), 259);
  folder.write("config.json", R"({"eos_token_id": [260, 1]})");
  EXPECT_EQ(Tokenizer(path).eos_id(), 260);
  folder.write("tokenizer_config.json", R"({"eos_token": "abc"})");
  EXPECT_EQ(Tokenizer(path).eos_id(), 257);
  folder.write("tokenizer_config.json", R"({"eos_token": {"content": "</s>"}})");
  EXPECT_EQ(Tokenizer(path).eos_id(), 260);
  folder.write("tokenizer_config.json", R"({"eos_token": "<none>"})");
  EXPECT_EQ(
      user_error([&] { Tokenizer{path}; }),
      path + ", tokenizer_config.json: eos_token: found \"<none>\", expected a token of tokenizer.json");
  const Tokenizer copy(
      write_tokenizer(folder / "out", Tokenizer(folder.write("a.tokenizer.json", file.dump()))));
  EXPECT_EQ(copy.eos_id(), 259);
  EXPECT_EQ(copy.companions().size(), 0u);
}

TEST(BpeTokenizer, RejectsUnsupportedFeatures) {
  const std::string other = "; use hero_moe.data for other tokenizers";
  const auto with = [](const char* pointer, const json& value) {
    auto file = small_tokenizer_json();
    file[json::json_pointer(pointer)] = value;
    return file;
  };
  EXPECT_EQ(open_error(with("/model/type", "Unigram")),
            "t.json: model.type: found \"Unigram\", expected \"BPE\"" + other);
  EXPECT_EQ(open_error(with("/model/dropout", 0.1)),
            "t.json: model.dropout: found 0.1, expected null" + other);
  EXPECT_EQ(open_error(with("/model/byte_fallback", true)),
            "t.json: model.byte_fallback: found true, expected null" + other);
  EXPECT_EQ(open_error(with("/model/end_of_word_suffix", "</w>")),
            "t.json: model.end_of_word_suffix: found \"</w>\", expected null" + other);
  EXPECT_EQ(open_error(with("/normalizer", {{"type", "NFC"}, {"x", 1}})),
            "t.json: normalizer.x: unknown key, expected type");
  EXPECT_EQ(open_error(with("/normalizer", {{"type", "Strip"}})),
            "t.json: normalizer.type: found \"Strip\", expected NFC, NFD, NFKC, NFKD, Lowercase or Sequence" +
                other);
  EXPECT_EQ(open_error(with("/pre_tokenizer", nullptr)),
            "t.json: pre_tokenizer: found null, expected ByteLevel, alone or last in a Sequence" + other);
  EXPECT_EQ(open_error(with("/pre_tokenizer", {{"type", "Metaspace"}})),
            "t.json: pre_tokenizer.type: found \"Metaspace\", expected Split, ByteLevel, Digits, Punctuation "
            "or Sequence" +
                other);
  EXPECT_EQ(open_error(with("/decoder", nullptr)),
            "t.json: decoder: found null, expected \"ByteLevel\"" + other);
  EXPECT_EQ(open_error(with("/post_processor", {{"type", "New"}})).substr(0, 48),
            "t.json: post_processor.type: found \"New\", expect");
  EXPECT_EQ(open_error(with("/truncation", {{"max_length", 8}})),
            "t.json: truncation: found {\"max_length\":8}, expected null: documents are not truncated "
            "or padded");
  EXPECT_EQ(open_error(with("/extra", 1)),
            "t.json: extra: unknown key, expected version, truncation, padding, added_tokens, normalizer, "
            "pre_tokenizer, post_processor, decoder, model");
}

TEST(BpeTokenizer, RejectsInvalidFiles) {
  auto file = small_tokenizer_json();
  EXPECT_EQ(user_error([] { Tokenizer("{\"model\": ", "t.json"); }),
            "t.json: byte 10: found invalid JSON, expected one JSON value");
  file["model"]["merges"].push_back("a q z");
  EXPECT_EQ(open_error(file), "t.json: model.merges[3]: found \"a q z\", expected two pieces and a space");
  file["model"]["merges"][3] = json::array({"a", "zz"});
  EXPECT_EQ(open_error(file),
            "t.json: model.merges[3]: found [\"a\",\"zz\"], expected pieces and a merge result in "
            "model.vocab (\"zz\" is missing)");
  file = small_tokenizer_json();
  file["model"]["vocab"]["zz"] = 256;
  EXPECT_EQ(open_error(file), "t.json: model.vocab.zz: found 256, expected a different id than \"ab\"");
  file = small_tokenizer_json();
  file["added_tokens"][0]["id"] = 300;
  EXPECT_EQ(open_error(file),
            "t.json: added_tokens[0].id: found 300, expected 259, the next id after model.vocab");
  file["added_tokens"][0].erase("lstrip");
  EXPECT_EQ(open_error(file), "t.json: added_tokens[0].lstrip: not found, expected this key");
}

}  // namespace bpe_tokenizer_test
}  // namespace hero
