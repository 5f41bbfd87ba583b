// Templates in their child process: failures, limits, threads, and where answers end.
#include "inference/chat_template.h"

#include <gtest/gtest.h>

#include <thread>

#include "data/files.h"
#include "inference/end_of_turn.h"
#include "tokenizer/small_tokenizer.h"

namespace chat_template_test {

using namespace std::chrono_literals;
using hero::ChatTemplate;
using nlohmann::json;

json user(const std::string& content) { return json::array({{{"role", "user"}, {"content", content}}}); }

hero::ChatTemplateSource source(const std::string& jinja) { return {.where = "test", .jinja = jinja}; }

std::string text(ChatTemplate& chat, const std::string& content) {
  return chat.render(user(content), true).value();
}

std::string error_of(ChatTemplate& chat, const std::string& content) {
  try {
    chat.render(user(content), true);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

constexpr const char* kFailing =
    "{% if messages[0].content == 'no' %}{{ raise_exception('not this') }}"
    "{% elif messages[0].content == 'slow' %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor "
    "%}"
    "{% endfor %}{% elif messages[0].content == 'long' %}{{ 'x' * 1000 }}"
    "{% else %}{{ messages[0].content }}|{{ add_generation_prompt }}|{{ eos_token }}{% endif %}";

TEST(ChatTemplate, RendersAndRejects) {
  auto from = source(kFailing);
  from.special_tokens["eos_token"] = "</s>";
  ChatTemplate chat(from, {.text_bytes = 100});
  EXPECT_EQ(text(chat, "a\n\"汉"), "a\n\"汉|True|</s>");
  EXPECT_EQ(chat.render(user("b"), false), "b|False|</s>");
  EXPECT_EQ(error_of(chat, "no"), "chat template: test: not this");
  EXPECT_EQ(
      error_of(chat, "long"),
      "chat template: test: the text has more than 100 bytes, which do not fit into the model's length");
  EXPECT_EQ(text(chat, "c"), "c|True|</s>");
}

TEST(ChatTemplate, InvalidTemplates) {
  EXPECT_THROW(ChatTemplate(source("{% for %}"), {}), hero::ChatTemplateError);
  EXPECT_THROW(ChatTemplate({.where = "chatm"}, {}), hero::ChatTemplateError);
  ChatTemplate built_in({.where = "chatml"}, {});
  EXPECT_EQ(text(built_in, "a"), "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_NE(built_in.jinja().find("im_start"), std::string::npos);
}

TEST(ChatTemplate, TimeLimitEndsTheChildAndTheNextStartsAnother) {
  ChatTemplate chat(source(kFailing), {.rendering = 300ms});
  EXPECT_EQ(error_of(chat, "slow"), "chat template: test: found no answer within the time limit");
  EXPECT_EQ(text(chat, "a"), "a|True|");
  EXPECT_EQ(chat.render(user("slow"), true, std::chrono::steady_clock::now() + 100ms), std::nullopt);
  EXPECT_EQ(text(chat, "b"), "b|True|");
}

TEST(ChatTemplate, SeveralThreads) {
  ChatTemplate chat(source(kFailing), {});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&chat, i] {
      for (int j = 0; j < 50; ++j) {
        const std::string content = std::to_string(1000 * i + j);
        EXPECT_EQ(text(chat, content), content + "|True|");
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(ChatTemplate, LookedUpInTheFolderOrGiven) {
  const hero::TemporaryFolder folder;
  folder.write("tokenizer.json", hero::small_tokenizer_json().dump());
  const hero::Tokenizer tokenizer(folder.path());
  const auto found = [&](const std::string& option) {
    return hero::find_chat_template(option, tokenizer, folder.path());
  };
  EXPECT_EQ(found("").where, "");
  EXPECT_EQ(found("chatml").where, "chatml");
  EXPECT_EQ(found("").special_tokens.at("eos_token"), "<|endoftext|>");
  const auto write_config = [&](const json& value) {
    folder.write("tokenizer_config.json", json{{"chat_template", value},
                                               {"bos_token", {{"content", "<b>"}}},
                                               {"add_bos_token", true},
                                               {"eos_token", nullptr}}
                                              .dump());
  };
  write_config("one");
  EXPECT_EQ(found("").jinja, "one");
  EXPECT_EQ(found("").special_tokens,
            (std::map<std::string, std::string>{{"bos_token", "<b>"}, {"eos_token", "<|endoftext|>"}}));
  write_config({{{"name", "tool_use"}, {"template", "two"}}, {{"name", "default"}, {"template", "three"}}});
  EXPECT_EQ(found("").jinja, "three");
  write_config(json::array({1, json::object()}));
  EXPECT_EQ(found("").where, "");
  folder.write("chat_template.jinja", "four");
  EXPECT_EQ(found("").jinja, "four");
  EXPECT_EQ(found(folder.write("own.jinja", "five")).jinja, "five");
  const auto invalid = folder.write("invalid.jinja", "\xff");
  EXPECT_THROW(found(invalid), hero::UserError);
}

hero::EndOfTurn end_of(const std::string& jinja, const hero::TemporaryFolder& folder) {
  auto tokens = hero::small_tokenizer_json();
  tokens["added_tokens"].push_back(hero::added_token(260, "<|end|>", true));
  tokens["added_tokens"].push_back(hero::added_token(261, "<turn>"));
  const hero::Tokenizer tokenizer(tokens.dump(), "tokenizer.json");
  ChatTemplate chat(source(jinja), {});
  return hero::find_end_of_turn(chat, tokenizer, folder.path());
}

TEST(EndOfTurn, WhatTheTemplateWritesAfterAnAnswer) {
  using Ids = std::vector<int64_t>;
  using Strings = std::vector<std::string>;
  const hero::TemporaryFolder folder;
  const std::string loop = "{% for m in messages %}", end = "{% endfor %}";
  auto found = end_of(loop + "{{ m.role ~ m.content }}<|end|>\n{% endfor %}", folder);
  EXPECT_EQ(found.strings, Strings{"<|end|>"});
  EXPECT_EQ(found.ids, (Ids{259, 260}));  // the EOS token too
  found = end_of(loop + "{{ m.role ~ m.content }}<turn>{% endfor %}", folder);
  EXPECT_EQ(found.ids, (Ids{259, 261}));
  found = end_of(loop + "{{ m.role ~ m.content }} [end]{% endfor %}", folder);
  EXPECT_EQ(found.strings, Strings{"[end]"});
  EXPECT_EQ(found.ids, Ids{259});
  // Nothing follows: what the next message begins with.
  found =
      end_of(loop + "{{ '\n\n' if not loop.first else '' }}{{ m.role | capitalize }}: {{ m.content }}" + end,
             folder);
  EXPECT_EQ(found.strings, Strings{"\n\nUser:"});
  found = end_of(loop + "{{ m.content }}" + end, folder);
  EXPECT_TRUE(found.strings.empty());
  found = end_of("{{ raise_exception('never') }}", folder);
  EXPECT_TRUE(found.strings.empty());
  folder.write("config.json", R"({"eos_token_id": 5})");
  EXPECT_EQ(end_of("", folder).ids, (Ids{5, 259}));
  folder.write("generation_config.json", R"({"eos_token_id": [7, 6, 100000, "x"]})");
  EXPECT_EQ(end_of("", folder).ids, (Ids{6, 7, 259}));
}

}  // namespace chat_template_test
