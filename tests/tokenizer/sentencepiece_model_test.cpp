// Damaged and crafted SentencePiece models: a UserError, never a crash of the library.
#include "tokenizer/sentencepiece_model.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <cstring>
#include <limits>
#include <vector>

#include "data/files.h"
#include "data/tokenizer_training.h"
#include "tokenizer/character_map.h"
#include "tokenizer/generated_text.h"
#include "tokenizer/sentencepiece_bytes.h"
#include "tokenizer/tokenizer.h"

namespace hero {
namespace sentencepiece_model_test {

using namespace sentencepiece_bytes;

std::string unigram(const std::string& pieces) { return model_of(pieces, SentencePieceModel::Kind::unigram); }

// A trie of 256 units without rules, whose root has the offset 1, and an empty replacement.
struct CharacterMap {
  std::vector<uint32_t> units = std::vector<uint32_t>(256, 0x80000000);
  std::string replacements = std::string(1, '\0');
  CharacterMap() { units[0] = 1 << 10; }
  std::string bytes() const {
    const auto size = static_cast<uint32_t>(units.size() * sizeof units[0]);
    std::string all(sizeof size + size, '\0');
    std::memcpy(all.data(), &size, sizeof size);
    std::memcpy(all.data() + sizeof size, units.data(), size);
    return all + replacements;
  }
};

std::string open_and_encode(const std::string& model) {
  const Tokenizer tokenizer(model, "m");
  return tokenizer.decode(
      tokenizer.encode(" a  text </s> \xE2\x96\x81 with\t\xC3\xA9 <unk> \xEF\xAC\x81 12\n"));
}

std::string error_of(const std::string& model) {
  return user_error([&] { open_and_encode(model); });
}

TEST(SentencePieceModel, RejectsPieces) {
  EXPECT_NO_THROW(open_and_encode(unigram(piece("a") + piece("ab", Type::user_defined))));
  EXPECT_EQ(error_of(unigram(piece("a") + piece(""))), "m: piece 2: found an empty piece, expected text");
  EXPECT_EQ(error_of(unigram(piece("a") + piece("a"))),
            "m: piece 2: found \"a\" as for piece 1, expected unique pieces");
  EXPECT_EQ(error_of(unigram(piece("a", Type::normal, std::numeric_limits<float>::quiet_NaN()))),
            "m: piece 1: found score nan, expected a finite score");
  EXPECT_EQ(error_of(unigram(piece("a\xFF"))),
            "m: piece 1: found invalid UTF-8 \"a\\ufffd\", expected UTF-8 text");
  EXPECT_EQ(error_of(unigram(piece(std::string(200'000, 'a')))),
            "m: piece 1: found 200000 bytes, expected at most 4096");
  EXPECT_EQ(error_of(unigram(piece("b") + piece("?", Type::unknown))),
            "m: piece 2: found a second piece of type unknown, expected one");
  EXPECT_EQ(error_of(piece("a")), "m: found no piece of type unknown, expected one");
}

// Only pieces in a trie must not have NUL; some published BPE models have such a piece.
TEST(SentencePieceModel, RejectsNulWhereItEndsAKey) {
  const std::string nul = piece(std::string(1, '\0'));
  EXPECT_EQ(error_of(unigram(piece("a") + nul)),
            "m: piece 2: found a NUL byte in \"\\u0000\", expected text without it");
  EXPECT_NO_THROW(open_and_encode(model_of(piece("a") + nul, SentencePieceModel::Kind::bpe)));
}

TEST(SentencePieceModel, RejectsManyNestedUserDefinedPieces) {
  std::string pieces;
  for (int i = 1; i <= 64; ++i) pieces += piece(std::string(i, 'a'), Type::user_defined);
  EXPECT_NO_THROW(open_and_encode(unigram(pieces)));
  pieces += piece(std::string(65, 'a'), Type::user_defined);
  EXPECT_EQ(error_of(unigram(pieces)),
            "m: piece 65: found 64 other user-defined pieces at its start, expected at most 63");
}

TEST(SentencePieceModel, RejectsWhatParsersReadDifferently) {
  const std::string good = unigram(piece("a"));
  for (const std::string& bad :
       {good + field(3, field(2, CharacterMap().bytes())), good + field(2, field(3, 1)), good + field(1, 7),
        good + field(1, field(1, "b") + field(1, "c")), good + field(1, field(1, "b") + field(3, 7)),
        good + field(1, field(1, "b") + field(3, (uint64_t{1} << 32) + 1)), good + std::string(1, '\x0B')}) {
    EXPECT_EQ(error_of(bad).find("m: found " + std::to_string(bad.size()) +
                                 " bytes that are not a SentencePiece model"),
              0u);
  }
}

// Such as Llama 2's: encoded word by word, every word would get a space.
TEST(SentencePieceModel, TextThatGetsASpaceFirstIsEncodedAsAWhole) {
  const std::string space = "\xE2\x96\x81";
  std::string pieces;
  for (const std::string& text : {space, space + "a", space + "te"}) pieces += piece(text);
  for (const char* const text : {"a", "e", "t", "te"}) pieces += piece(text);
  const std::string model = byte_fallback_bpe(pieces, /*add_dummy_prefix=*/true);
  const Tokenizer tokenizer(model, "m");
  EXPECT_FALSE(tokenizer.lossless());
  EXPECT_TRUE(Tokenizer(byte_fallback_bpe(pieces), "m").lossless());
  sentencepiece::SentencePieceProcessor reference;
  ASSERT_TRUE(reference.LoadFromSerializedProto(model).ok());
  for (uint64_t i = 0; i < 300; ++i) {
    const std::string text = edge_case_text(i);
    std::vector<int> ids;
    ASSERT_TRUE(reference.Encode(text, &ids).ok());
    ASSERT_EQ(tokenizer.encode(text), std::vector<int32_t>(ids.begin(), ids.end())) << "text " << i;
  }
}

TEST(SentencePieceModel, RejectsWordModelsThatFailLater) {
  const auto word = [](uint64_t add_dummy_prefix, uint64_t treat_whitespace_as_suffix) {
    return piece("<unk>", Type::unknown) +
           piece(
               "\xE2\x96\x81"
               "a") +
           field(2, field(3, static_cast<uint64_t>(SentencePieceModel::Kind::word)) +
                        field(24, treat_whitespace_as_suffix)) +
           field(3, field(3, add_dummy_prefix));
  };
  EXPECT_NO_THROW(open_and_encode(word(1, 0)));
  for (const auto& model : {word(0, 0), word(1, 1)}) {
    EXPECT_EQ(
        error_of(model),
        "m: found model_type word without a space before the first word, expected add_dummy_prefix and not "
        "treat_whitespace_as_suffix");
  }
}

TEST(CharacterMap, ReportsDefects) {
  const auto defect = [](const CharacterMap& map) {
    const char* const found = find_character_map_defect(map.bytes());
    return std::string(found ? found : "");
  };
  const auto with_unit = [&](std::size_t i, uint32_t bits) {
    CharacterMap map;
    map.units[i] = bits;
    return defect(map);
  };
  EXPECT_EQ(defect({}), "");
  EXPECT_EQ(with_unit(0, 0xFFFFFC00), "a trie with an offset outside of it");  // the root is always followed
  EXPECT_EQ(with_unit(1 ^ 'a', 'a' | 256 << 10), "a trie with an offset outside of it");
  // "a" is a rule with the value of unit 3, at the offset that leads there.
  const uint32_t rule = 'a' | 1 << 8 | (1 ^ 'a' ^ 3) << 10;
  EXPECT_EQ(with_unit(1 ^ 'a', rule), "");
  CharacterMap map;
  map.units[1 ^ 'a'] = rule;
  map.units[3] = 0x80000001;
  EXPECT_EQ(defect(map), "a rule without a replacement");
  map.units[3] = 0x80000000;
  map.replacements = std::string("\xC3\0", 2);
  EXPECT_EQ(defect(map), "a replacement of invalid UTF-8");
  map.replacements = std::string(2000, 'a') + '\0';
  EXPECT_EQ(defect(map), "a replacement of more than 1024 bytes");
  map.replacements = "a";
  EXPECT_EQ(defect(map), "a replacement without an end");
  // After "a", the search is at its start again: any number of "a" is a rule.
  map.units[1 ^ 'a'] = 'a' | 1 << 8 | 'a' << 10;
  map.replacements = std::string(1, '\0');
  EXPECT_EQ(defect(map), "a trie with too many or too long rules");
  map = {};
  map.units.resize(200);
  EXPECT_EQ(defect(map), "a trie of incomplete blocks");
  EXPECT_STREQ(find_character_map_defect("\xFF\xFF\xFF\x7F rest"), "a trie larger than the map");
  EXPECT_STREQ(find_character_map_defect("abcd"), "no trie");

  map.units.assign(256, 0xFFFFFC00);
  EXPECT_EQ(
      error_of(model_of(piece("a"), SentencePieceModel::Kind::unigram, map.bytes())),
      "m: normalizer_spec.precompiled_charsmap: found a trie with an offset outside of it, expected a map "
      "written by SentencePiece");
}

// With the largest of SentencePiece's own character maps.
std::string train_unigram(const std::string& corpus) {
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train({{"input", corpus},
                                                                  {"model_type", "unigram"},
                                                                  {"vocab_size", "400"},
                                                                  {"hard_vocab_limit", "false"},
                                                                  {"byte_fallback", "true"},
                                                                  {"normalization_rule_name", "nmt_nfkc_cf"},
                                                                  {"user_defined_symbols", "<a>,<b>"},
                                                                  {"num_threads", "1"},
                                                                  {"minloglevel", "2"}},
                                                                 nullptr, &model);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return model;
}

TEST(SentencePieceModel, RandomDamageIsAUserErrorOrHarmless) {
  const TemporaryFolder folder;
  TokenizerTraining options;
  options.corpus.inputs = {folder.write("code.py", plain_code(300))};
  options.vocab_size = 400;
  RandomStream random(7);
  for (const std::string& model : {train_tokenizer(options).model, train_unigram(options.corpus.inputs[0])}) {
    EXPECT_NO_THROW(open_and_encode(model));
    int loaded = 0, rejected = 0;
    for (int trial = 0; trial < 400; ++trial) {
      std::string damaged = model;
      for (uint64_t changes = 1 + random.below(3); changes > 0; --changes) {
        char& byte = damaged[random.below(damaged.size())];
        byte = static_cast<char>(random.below(2) ? random.below(256) : byte ^ 1 << random.below(8));
      }
      if (random.below(20) == 0) damaged.resize(random.below(damaged.size()));
      try {
        open_and_encode(damaged);
        ++loaded;
      } catch (const UserError&) {
        ++rejected;
      }
    }
    EXPECT_GT(loaded, 20);
    EXPECT_GT(rejected, 100);
  }
}

}  // namespace sentencepiece_model_test
}  // namespace hero
