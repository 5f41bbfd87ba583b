#include "tokenizer/tokenizer_export.h"

#include <nlohmann/json.hpp>
#include <set>

#include "data/files.h"
#include "data/tokenizer_training.h"
#include "tokenizer/generated_text.h"
#include "tokenizer/sentencepiece_bytes.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/small_tokenizer.h"

namespace hero {
namespace tokenizer_export_test {

using nlohmann::json;

TEST(TokenizerExport, TokenizerJsonIsCopiedWithItsConfiguration) {
  const TemporaryFolder folder;
  const std::string bytes = small_tokenizer_json().dump();
  const auto alone = tokenizer_files(Tokenizer(bytes, "t"), 512);
  ASSERT_EQ(alone.size(), 2u);
  EXPECT_EQ(alone.at("tokenizer.json"), bytes);
  EXPECT_EQ(json::parse(alone.at("tokenizer_config.json")),
            (json{{"tokenizer_class", "PreTrainedTokenizerFast"},
                  {"clean_up_tokenization_spaces", false},
                  {"eos_token", "<|endoftext|>"},
                  {"model_max_length", 512}}));
  folder.write("tokenizer.json", bytes);
  folder.write("tokenizer_config.json",
               R"({"eos_token": "abc", "chat_template": "x", "model_max_length": 7})");
  folder.write("chat_template.jinja", "{{ messages }}");
  const auto files = tokenizer_files(Tokenizer(folder.path()));
  ASSERT_EQ(files.size(), 3u);
  EXPECT_EQ(files.at("chat_template.jinja"), "{{ messages }}");
  EXPECT_EQ(json::parse(files.at("tokenizer_config.json")),
            (json{{"eos_token", "abc"}, {"chat_template", "x"}, {"model_max_length", 7}}));
}

TEST(TokenizerExport, SentencePieceBecomesATokenizerJson) {
  const TemporaryFolder folder;
  TokenizerTraining options;
  options.corpus.inputs = {folder.write("code.py", plain_code(300))};
  options.vocab_size = 400;
  const std::string model = train_tokenizer(options).model;
  const Tokenizer tokenizer(model, "m");

  const auto pieces = read_sentencepiece_model(model, "m");
  EXPECT_EQ(pieces.kind, SentencePieceModel::Kind::bpe);
  ASSERT_EQ(pieces.pieces.size(), 400u);
  for (int id = 0; id < 400; ++id) EXPECT_EQ(pieces.pieces[id].text, tokenizer.piece(id));
  EXPECT_EQ(pieces.pieces[1].type, SentencePieceModel::Type::control);
  EXPECT_EQ(pieces.pieces[2].type, SentencePieceModel::Type::user_defined);
  EXPECT_EQ(pieces.pieces[5].type, SentencePieceModel::Type::byte);

  const auto files = tokenizer_files(tokenizer);
  ASSERT_EQ(files.size(), 3u);
  EXPECT_EQ(files.at("tokenizer.model"), model);
  const auto config = json::parse(files.at("tokenizer_config.json"));
  EXPECT_EQ(config.at("eos_token"), "</s>");
  EXPECT_EQ(config.at("split_special_tokens"), true);
  const auto file = json::parse(files.at("tokenizer.json"));
  EXPECT_EQ(file.at("model").at("vocab").size(), 400u);
  EXPECT_EQ(file.at("added_tokens").size(), 5u);  // <unk>, </s>, three runs of tabs
  // Every learned piece is the result of a merge.
  const auto& vocab = file.at("model").at("vocab");
  std::set<std::string> merged;
  for (const auto& merge : file.at("model").at("merges")) {
    const std::string whole = merge[0].get<std::string>() + merge[1].get<std::string>();
    EXPECT_TRUE(vocab.contains(whole)) << whole;
    merged.insert(whole);
  }
  for (int id = 261; id < 400; ++id) {
    const auto& piece = pieces.pieces[id];
    if (tokenizer.decode(std::vector<int32_t>{id}).size() > 1) {
      EXPECT_TRUE(merged.contains(tokenizer.decode(std::vector<int32_t>{id}))) << piece.text;
    }
  }
}

TEST(TokenizerExport, OtherSentencePieceModels) {
  using namespace sentencepiece_bytes;
  const auto config_of = [](const std::string& model) {
    const auto files = tokenizer_files(Tokenizer(model, "m"));
    return std::pair(files.contains("tokenizer.json"), json::parse(files.at("tokenizer_config.json")));
  };
  const auto [converted, fast] = config_of(byte_fallback_bpe(piece("a"), /*add_dummy_prefix=*/true));
  EXPECT_TRUE(converted);
  EXPECT_EQ(fast.at("tokenizer_class"), "PreTrainedTokenizerFast");
  for (const std::string& model :
       {model_of(piece("a"), SentencePieceModel::Kind::unigram),
        byte_fallback_bpe(piece("a", Type::user_defined), /*add_dummy_prefix=*/true),
        byte_fallback_bpe(piece("a b"))}) {
    const auto [json_form, config] = config_of(model);
    EXPECT_FALSE(json_form);
    EXPECT_EQ(config.at("tokenizer_class"), "SentencePieceBackend");
    EXPECT_EQ(config.at("unk_token"), "<unk>");
    EXPECT_EQ(config.at("split_special_tokens"), true);
  }
}

}  // namespace tokenizer_export_test
}  // namespace hero
