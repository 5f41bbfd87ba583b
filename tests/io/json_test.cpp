#include "io/json.h"

#include <gtest/gtest.h>

#include "data/files.h"
#include "io/json_node.h"

namespace hero {
namespace json_test {

using nlohmann::json;

std::string error_of(const std::string& text, const JsonSource& source = {"f.json"}) {
  return user_error([&] { parse_json(text, source); });
}

std::string nested(int levels) { return std::string(levels, '[') + std::string(levels, ']'); }

TEST(JsonReader, BuildsEveryKindOfValue) {
  const std::string text = R"( {"a": [1, -2, 2.5, true, null, "\u00e9", [], {}],
                               "b": {"c": {"a": [[1], {"d": 18446744073709551615}]}, "": false}} )";
  const json value = parse_json(text, {"f.json"});
  EXPECT_EQ(value, json::parse(text));
  EXPECT_TRUE(value["a"][0].is_number_unsigned());
  EXPECT_TRUE(value["a"][1].is_number_integer());
  EXPECT_TRUE(value["a"][2].is_number_float());
  EXPECT_EQ(value["b"]["c"]["a"][1]["d"].get<uint64_t>(), 18446744073709551615u);
  EXPECT_EQ(parse_json("3", {"f.json"}), json(3));
  EXPECT_EQ(parse_json("\"x\"", {"f.json"}), json("x"));
}

TEST(JsonReader, KeepsTheOrderOfKeysOnRequest) {
  const std::string text = R"({"z":1,"a":{"y":[{"c":1,"b":2}],"x":3},"m":[]})";
  EXPECT_EQ(parse_ordered_json(text, {"f.json"}).dump(), text);
  EXPECT_EQ(parse_json(text, {"f.json"}).dump(), R"({"a":{"x":3,"y":[{"b":2,"c":1}]},"m":[],"z":1})");
  EXPECT_EQ(user_error([] { parse_ordered_json(R"({"a": 1, "a": 2})", {"f.json"}); }),
            "f.json: entry \"a\" is a duplicate key, expected unique keys");
}

TEST(JsonReader, ErrorsNameTheInvalidByte) {
  const std::string what = ": found invalid JSON, expected one JSON value";
  EXPECT_EQ(error_of(""), "f.json: byte 0" + what);
  EXPECT_EQ(error_of("[1,]"), "f.json: byte 3" + what);
  EXPECT_EQ(error_of("{} 1"), "f.json: byte 3" + what);
  EXPECT_EQ(error_of("[NaN]"), "f.json: byte 1" + what);
  EXPECT_EQ(error_of("[\"\xFF\"]"), "f.json: byte 2" + what);
  EXPECT_EQ(error_of("[1,]", {"f.bin", 0, 8}), "f.bin: byte 11" + what);
  EXPECT_EQ(error_of("[1,]", {"f.jsonl", 7, 100}), "f.jsonl: line 7, byte 103" + what);
}

TEST(JsonReader, RejectsDuplicateKeysOfOneObject) {
  EXPECT_EQ(error_of(R"({"a": {"b": 1, "c": [], "b": 2}})"),
            "f.json: entry \"b\" is a duplicate key, expected unique keys");
  EXPECT_EQ(error_of(R"({"a": 1, "\u0061": 2})", {"f.jsonl", 3}),
            "f.jsonl: line 3: entry \"a\" is a duplicate key, expected unique keys");
  EXPECT_EQ(parse_json(R"([{"a": {"a": 1}}, {"a": 2}])", {"f.json"})[1]["a"], json(2));
}

TEST(JsonReader, RejectsNumbersOutsideTheRangeOfADouble) {
  const std::string what = ", expected a value in the range of a double";
  EXPECT_EQ(error_of("[1e400]"), "f.json: found number '1e400'" + what);
  EXPECT_EQ(error_of("[-1e400]", {"f.jsonl", 2}), "f.jsonl: line 2: found number '-1e400'" + what);
  EXPECT_LT(error_of(std::string(100'000, '9')).size(), 200u);
  EXPECT_EQ(parse_json("1e-400", {"f.json"}), json(0.0));
}

TEST(JsonReader, LimitsTheDepth) {
  const std::string what = "f.json: found values nested deeper than 100 levels, expected at most 100 levels";
  EXPECT_EQ(parse_json(nested(100), {"f.json"}).dump(), nested(100));
  EXPECT_EQ(error_of(nested(101)), what);
  EXPECT_EQ(error_of(nested(1'000'000)), what);
  std::string objects;
  for (int i = 0; i < 101; ++i) objects += "{\"a\":";
  EXPECT_EQ(error_of(objects), what);
  EXPECT_EQ(parse_json("[" + nested(99) + "," + nested(99) + "]", {"f.json"}).size(), 2u);
}

TEST(JsonReader, NullForRejectedTextsOnRequest) {
  for (const std::string& bad : {std::string("{\"a\": "), std::string("[1e400]"), nested(101)})
    EXPECT_TRUE(parse_json_or_null(bad).is_null()) << bad;
  EXPECT_EQ(parse_json_or_null("{\"a\": 1}"), json({{"a", 1}}));
}

TEST(JsonNode, ErrorsNameThePathAndAShortValue) {
  const std::string file = "f.json";
  const json value = parse_json(R"({"a": [{"b": ")" + std::string(1000, 'x') + R"("}]})", {file});
  const JsonNode node = JsonNode(value, file).at("a").items()[0].at("b");
  EXPECT_EQ(user_error([&] { node.integer(0, 9); }),
            "f.json: a[0].b: found \"" + std::string(76, 'x') + "..., expected an integer from 0 to 9");
}

}  // namespace json_test
}  // namespace hero
