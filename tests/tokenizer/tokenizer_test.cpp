#include "tokenizer/tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <vector>

#include "data/counter_random.h"
#include "data/files.h"
#include "data/tokenizer_training.h"
#include "io/utf8.h"
#include "tokenizer/generated_text.h"
#include "tokenizer/icu_size.h"

namespace hero {
namespace tokenizer_test {

TrainedTokenizer train_on(const std::vector<std::string>& inputs, int64_t vocab_size, int workers = 2,
                          int64_t sample_bytes = 1 << 26) {
  TokenizerTraining options;
  options.corpus.inputs = inputs;
  options.vocab_size = vocab_size;
  options.workers = workers;
  options.sample_bytes = sample_bytes;
  return train_tokenizer(options);
}

class TokenizerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const TemporaryFolder folder;
    std::string lines;
    for (uint64_t i = 0; i < 400; ++i) lines += json_line(edge_case_text(i + 1000000));
    model_ =
        train_on({folder.write("code.py", plain_code(400)), folder.write("nasty.jsonl", lines)}, 900).model;
  }
  static Tokenizer tokenizer() { return Tokenizer(model_, "test.model"); }
  static inline std::string model_;
};

TEST(IcuSize, RejectsTextsThatAreTooLong) {
  const char byte = 'a';
  EXPECT_EQ(icu_size({&byte, 1}), 1);
  EXPECT_THROW(icu_size({&byte, size_t{1} << 31}), UserError);  // reads only the size
}

TEST_F(TokenizerTest, RoundTrip) {
  const auto tokenizer = TokenizerTest::tokenizer();
  ASSERT_TRUE(tokenizer.lossless());
  Tokenizer::Cache cache;
  std::vector<int32_t> ids;
  for (uint64_t i = 0; i < 5000; ++i) {
    const std::string text = edge_case_text(i);
    ids.clear();
    tokenizer.encode(text, ids, cache);
    ASSERT_EQ(tokenizer.decode(ids), text) << "text " << i;
    ASSERT_EQ(tokenizer.encode(text), ids) << "cached ids differ for text " << i;
    ASSERT_EQ(std::count(ids.begin(), ids.end(), 0), 0) << "unknown in text " << i;
    ASSERT_EQ(std::count(ids.begin(), ids.end(), tokenizer.eos_id()), 0) << "control in text " << i;
  }
}

// Bytes of a token are independent of context, as needed for streaming.
TEST_F(TokenizerTest, BytesOfTokensConcatenateToText) {
  const auto tokenizer = TokenizerTest::tokenizer();
  const auto bytes_of = [&](const std::vector<int32_t>& ids) {
    std::string bytes;
    for (const int32_t id : ids) bytes += tokenizer.bytes(id);
    return bytes;
  };
  for (uint64_t i = 0; i < 2000; ++i) {
    const std::string text = edge_case_text(i);
    ASSERT_EQ(bytes_of(tokenizer.encode(text)), text) << "text " << i;
  }
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string bytes = tokenizer.bytes(id);
    ASSERT_EQ(to_valid_utf8(bytes), tokenizer.decode(std::vector{id})) << id;
  }
  EXPECT_EQ(tokenizer.bytes(tokenizer.eos_id()), "");
  EXPECT_EQ(tokenizer.bos_id(), -1);
  EXPECT_THROW(tokenizer.bytes(900), UserError);
}

TEST_F(TokenizerTest, RoundTripOfAllCharacters) {
  const auto tokenizer = TokenizerTest::tokenizer();
  std::string text;
  for (uint32_t c = 0; c <= 0x10FFFF; c += c < 0x3000 ? 1 : 7) {
    if (c < 0xD800 || c > 0xDFFF) append_utf8(text, c);
  }
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
}

TEST_F(TokenizerTest, WordwiseIdsEqualThoseOfWholeText) {
  const auto tokenizer = TokenizerTest::tokenizer();
  sentencepiece::SentencePieceProcessor plain;
  ASSERT_TRUE(plain.LoadFromSerializedProto(model_).ok());
  for (uint64_t i = 0; i < 2000; ++i) {
    const std::string text = edge_case_text(i);
    if (text.find("\xE2\x96\x81") != text.npos) continue;
    std::vector<int> whole;
    ASSERT_TRUE(plain.Encode(text, &whole).ok());
    ASSERT_EQ(tokenizer.encode(text), std::vector<int32_t>(whole.begin(), whole.end())) << "text " << i;
  }
}

TEST_F(TokenizerTest, RoundTripOfLongLines) {
  const auto tokenizer = TokenizerTest::tokenizer();
  std::string letters(3000000, 'a'), chinese, code = plain_code(20000);
  for (int i = 0; i < 400000; ++i) append_utf8(chinese, 0x4E00 + i % 977);
  std::replace(code.begin(), code.end(), '\n', ' ');
  for (const auto& text : {letters, chinese, code}) {
    const auto ids = tokenizer.encode(text);
    EXPECT_TRUE(tokenizer.decode(ids) == text) << text.substr(0, 30);
    EXPECT_LE(ids.size(), text.size());  // at most one id per byte
  }
}

TEST_F(TokenizerTest, IndentationNewlinesAndTabsHavePieces) {
  const auto tokenizer = TokenizerTest::tokenizer();
  for (const std::string text : {"    ", "        ", "\n", "\n\n", "\t", "\t\t", "\t\t\t\t", "):\n"}) {
    EXPECT_EQ(tokenizer.encode(text).size(), 1u) << '"' << text << '"';
  }
  EXPECT_EQ(tokenizer.encode("2026").size(), 4u);
  EXPECT_EQ(tokenizer.piece(0), "<unk>");
  EXPECT_EQ(tokenizer.piece(1), "</s>");
  EXPECT_EQ(tokenizer.eos_id(), 1);
  EXPECT_EQ(tokenizer.vocab_size(), 900);
}

TEST_F(TokenizerTest, SpecialTokensInTextAreText) {
  const auto tokenizer = TokenizerTest::tokenizer();
  for (const std::string text : {"</s>", "<unk>", "<s>", "<0x41>", "a</s>b<0x0A>"}) {
    const auto ids = tokenizer.encode(text);
    EXPECT_GT(ids.size(), 1u) << text;
    EXPECT_EQ(tokenizer.decode(ids), text);
  }
}

TEST_F(TokenizerTest, ControlPiecesInConversationsAreTokens) {
  const auto tokenizer = TokenizerTest::tokenizer();
  auto expected = tokenizer.encode("ab \n");
  expected.push_back(1);
  for (const int32_t id : tokenizer.encode("<unk>\xE2\x96\x81 d")) expected.push_back(id);
  expected.push_back(1);
  EXPECT_EQ(tokenizer.encode_conversation("ab \n</s><unk>\xE2\x96\x81 d</s>"), expected);
  EXPECT_EQ(tokenizer.encode_conversation("no token"), tokenizer.encode("no token"));
}

TEST_F(TokenizerTest, RejectsIdsOutsideTheVocabulary) {
  const auto tokenizer = TokenizerTest::tokenizer();
  for (const int32_t id : {-1, 900}) {
    EXPECT_EQ(user_error([&] { tokenizer.decode(std::vector<int32_t>{5, id}); }),
              "token id " + std::to_string(id) + " is outside the tokenizer's vocabulary, expected 0 to 899");
  }
}

TEST_F(TokenizerTest, RejectsInvalidModelFiles) {
  const TemporaryFolder folder;
  EXPECT_EQ(user_error([&] { Tokenizer(folder / "none.model"); }),
            (folder / "none.model") + ": no such file");
  EXPECT_EQ(
      user_error([&] { Tokenizer(folder.path()); }),
      folder.path() + ": found a folder without tokenizer.model and tokenizer.json, expected one of them");
  for (const std::string& bytes :
       std::vector<std::string>{"", "hello", std::string(1000, '\0'), model_.substr(0, 5000)}) {
    const auto path = folder.write("wrong.model", bytes);
    EXPECT_EQ(user_error([&] { Tokenizer{path}; }),
              path + ": found " + std::to_string(bytes.size()) +
                  " bytes that are not a SentencePiece model, expected a model written by hero data "
                  "tokenizer or SentencePiece, or a Hugging Face tokenizer.json");
  }
}

TEST(TokenizerTraining, SameBytesForAnyNumberOfWorkers) {
  const TemporaryFolder folder;
  std::vector<std::string> inputs;
  for (int i = 0; i < 5; ++i) inputs.push_back(folder.write(std::to_string(i) + ".py", plain_code(60 + i)));
  const auto one = train_on(inputs, 400, 1), three = train_on(inputs, 400, 3);
  EXPECT_TRUE(one.model == three.model);
  const auto sampled = train_on(inputs, 350, 1, 20000), again = train_on(inputs, 350, 4, 20000);
  EXPECT_TRUE(sampled.model == again.model);
  EXPECT_LE(sampled.sampled_bytes, 20000);
  EXPECT_GT(sampled.sampled_bytes, 10000);
  EXPECT_EQ(sampled.text_bytes, one.text_bytes);
}

TEST(TokenizerTraining, LongLines) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 100000; ++i) text += "wonderful ";
  const Tokenizer tokenizer(train_on({folder.write("one-line.txt", text)}, 280).model, "m");
  EXPECT_EQ(tokenizer.encode(" wonderful").size(), 1u);
}

TEST(TokenizerTraining, HalfOfTheVocabularyIsForWords) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    append_utf8(text, 0x4E00 + i);
    text += " the same words again";
  }
  const Tokenizer tokenizer(train_on({folder.write("a.txt", text)}, 300).model, "m");
  EXPECT_EQ(tokenizer.encode(" again").size(), 1u);
  EXPECT_TRUE(tokenizer.decode(tokenizer.encode(text)) == text);
}

TEST(TokenizerTraining, RejectsInvalidVocabularySizes) {
  const TemporaryFolder folder;
  const auto few = folder.write("few.txt", "abc abc abd");
  EXPECT_EQ(user_error([&] { train_on({few}, 261); }),
            "--vocab-size 261: expected 262 to 16777216 (261 pieces are reserved, 256 of them bytes)");
  const auto message = user_error([&] { train_on({few}, 5000); });
  EXPECT_EQ(message.find("--vocab-size 5000: the text has too few different words, expected at most 2"), 0u)
      << message;
  const auto blank = folder.write("tabs.txt", "\t\t\t");
  EXPECT_EQ(user_error([&] { train_on({blank}, 300); }), blank + ": no words found, expected training text");
}

}  // namespace tokenizer_test
}  // namespace hero
