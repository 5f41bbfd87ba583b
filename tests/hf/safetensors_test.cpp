#include "hf/safetensors.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "hf/temporary_folder.h"
#include "io/error.h"

namespace hero {
namespace safetensors_test {

using test::error_of;
using test::read_bytes;
using test::TemporaryFolder;
using test::write_bytes;

constexpr std::array<float, 6> kFloats{1.5f, -2.25f, 3.0f, 1e-30f, 0.0f, -0.0f};
constexpr std::array<int64_t, 2> kLongs{-1, 1ll << 40};
constexpr std::array<unsigned char, 3> kBytes{0, 1, 255};

TensorView floats(const std::string& name = "b.weight") { return {name, "F32", {2, 3}, kFloats.data()}; }

// A file with the given header and `data_bytes` zero bytes of data.
std::string file_bytes(const std::string& header, size_t data_bytes) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
  return bytes + header + std::string(data_bytes, '\0');
}

TEST(Safetensors, RoundTrip) {
  const TemporaryFolder folder;
  const std::vector<TensorView> tensors{floats(),
                                        {"flag", "U8", {3}, kBytes.data()},
                                        {"scalar", "I64", {}, kLongs.data()},
                                        {"empty", "BF16", {0, 7}, nullptr},
                                        {"naïve \"name\"", "I64", {2}, kLongs.data()}};
  write_safetensors(folder / "t.safetensors", tensors, {{"format", "pt"}, {"note", "line\nbreak"}});
  const SafetensorsFile file(folder / "t.safetensors");
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const TensorView& expected : tensors) {
    const TensorView* found = file.find(expected.name);
    ASSERT_TRUE(found) << expected.name;
    EXPECT_EQ(found->dtype, expected.dtype);
    EXPECT_EQ(found->shape, expected.shape);
    ASSERT_EQ(found->bytes(), expected.bytes());
    if (expected.bytes() > 0) {
      EXPECT_EQ(std::memcmp(found->data, expected.data, expected.bytes()), 0) << expected.name;
    }
  }
  EXPECT_EQ(file.find("none"), nullptr);
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"note", "line\nbreak"}}));
}

// The expected bytes were written by save_file of the Python package safetensors 0.8.0.
TEST(Safetensors, BytesMatchReferenceImplementation) {
  const TemporaryFolder folder;
  const std::vector<float> f{1.0f, 2.0f};
  const std::vector<unsigned char> u{7};
  const std::vector<int64_t> i{-5};
  const std::vector<double> d{0.5};
  write_safetensors(folder / "t",
                    std::vector<TensorView>{{"u", "U8", {1}, u.data()},
                                            {"b", "F32", {2}, f.data()},
                                            {"a", "F32", {2, 1}, f.data()},
                                            {"d", "F64", {1}, d.data()},
                                            {"i", "I64", {}, i.data()}},
                    {{"format", "pt"}});
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"i":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
      R"("d":{"dtype":"F64","shape":[1],"data_offsets":[8,16]},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[16,24]},)"
      R"("b":{"dtype":"F32","shape":[2],"data_offsets":[24,32]},"u":{"dtype":"U8","shape":[1],"data_offsets":[32,33]}})";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  const std::string bytes = read_bytes(folder / "t");
  ASSERT_EQ(bytes.size(), 8 + padded.size() + 33);
  EXPECT_EQ(bytes.substr(0, 8 + padded.size()), file_bytes(padded, 0));
  EXPECT_EQ(bytes.substr(8 + padded.size(), 8), std::string("\xfb\xff\xff\xff\xff\xff\xff\xff", 8));
  EXPECT_EQ(bytes.substr(8 + padded.size() + 16, 8), std::string("\0\0\x80\x3f\0\0\0\x40", 8));
  EXPECT_EQ(bytes.back(), 7);
}

struct BadHeader {
  const char* name;
  std::string bytes;
  std::string message;  // a substring
};

class SafetensorsErrors : public testing::TestWithParam<BadHeader> {};

TEST_P(SafetensorsErrors, AreOneLineWithFileAndPosition) {
  const TemporaryFolder folder;
  const auto path = folder / "t.safetensors";
  write_bytes(path, GetParam().bytes);
  const std::string message = error_of<UserError>([&] { SafetensorsFile file(path); });
  EXPECT_EQ(message.rfind(path.string() + ": ", 0), 0u) << message;
  EXPECT_NE(message.find(GetParam().message), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

std::string entry(const std::string& text, size_t bytes = 8) {
  return file_bytes("{\"a\":" + text + "}", bytes);
}

INSTANTIATE_TEST_SUITE_P(
    Rules, SafetensorsErrors,
    testing::Values(
        BadHeader{"Empty", "", "found 0 bytes, expected a header length of 8"},
        BadHeader{"ShortLength", "abc", "found 3 bytes"},
        BadHeader{"LengthBeyondFile", file_bytes(std::string(100, '{'), 0).substr(0, 60),
                  "byte 0: found header length 100, expected at most 52 in a file of this size"},
        BadHeader{"LengthHuge", std::string(8, '\xff') + "{}", "found header length 18446744073709551615"},
        BadHeader{"LengthZero", file_bytes("", 10), "byte 8: found no '{'"},
        BadHeader{"LeadingSpace", file_bytes(" {}", 0), "byte 8: found no '{'"},
        BadHeader{"TruncatedJson", file_bytes("{\"a\":{\"dtype\"", 0), "byte 21: found invalid JSON"},
        BadHeader{"NotUtf8", file_bytes("{\"\xff\":1}", 0), "found invalid JSON"},
        BadHeader{"TrailingText", file_bytes("{} x", 0), "byte 11: found invalid JSON"},
        BadHeader{"Duplicate",
                  file_bytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                             2),
                  "entry \"a\" is a duplicate key"},
        BadHeader{"DuplicateField", entry(R"({"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]})"),
                  "entry \"dtype\" is a duplicate key"},
        BadHeader{"NotAnObject", entry("3"), "entry \"a\": found 3, expected an object with dtype"},
        BadHeader{"NoOffsets", entry(R"({"dtype":"U8","shape":[8]})"),
                  "expected an object with data_offsets"},
        BadHeader{"UnknownDtype", entry(R"({"dtype":"F31","shape":[2],"data_offsets":[0,8]})"),
                  "found dtype \"F31\""},
        BadHeader{"NegativeSize", entry(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"),
                  "found shape [-2]"},
        BadHeader{"FractionalSize", entry(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"),
                  "found shape [2.0]"},
        BadHeader{"Overflow",
                  entry(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})"),
                  "product fits in 64 bits"},
        BadHeader{"Reversed", entry(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"),
                  "found data_offsets [8,0]"},
        BadHeader{"OffsetsBeyondEnd", entry(R"({"dtype":"F32","shape":[4],"data_offsets":[0,16]})"),
                  "truncated: found 8 bytes after the header, expected 16"},
        BadHeader{"ShapeMismatch", entry(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
                  "found 8 bytes, expected 12 for F32 [3]"},
        BadHeader{"Gap", entry(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})"),
                  "found data at offset 4, expected 0"},
        BadHeader{"Overlap",
                  file_bytes(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                             R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                             3),
                  "entry \"b\": found data at offset 1, expected 2"},
        BadHeader{"TrailingBytes", entry(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})"),
                  "found 8 bytes after the header, expected 4"},
        BadHeader{"MetadataNumber", file_bytes(R"({"__metadata__":{"n":3}})", 0),
                  "found 3 at \"n\", expected a string"},
        BadHeader{"MetadataText", file_bytes(R"({"__metadata__":"pt"})", 0),
                  "expected an object of strings"}),
    [](const auto& info) { return info.param.name; });

TEST(Safetensors, EveryTruncationIsRejected) {
  const TemporaryFolder folder;
  write_safetensors(folder / "whole", std::vector<TensorView>{floats()});
  const std::string bytes = read_bytes(folder / "whole");
  for (size_t size = 0; size < bytes.size(); ++size) {
    write_bytes(folder / "truncated", bytes.substr(0, size));
    EXPECT_THROW(SafetensorsFile{folder / "truncated"}, UserError) << size;
  }
}

TEST(Safetensors, MissingFileAndFolder) {
  const TemporaryFolder folder;
  EXPECT_NE(error_of<UserError>([&] { SafetensorsFile{folder / "none"}; }).find("No such file"),
            std::string::npos);
  EXPECT_NE(error_of<UserError>([&] { SafetensorsFile{folder.path()}; }).find("regular file"),
            std::string::npos);
}

TEST(Safetensors, WriteErrorsContainSystemError) {
  const TemporaryFolder folder;
  const std::vector<TensorView> tensors{floats()};
  EXPECT_NE(
      error_of<RunError>([&] { write_safetensors("/dev/full", tensors); }).find("No space left on device"),
      std::string::npos);
  EXPECT_TRUE(std::filesystem::exists("/dev/full"));
  EXPECT_NE(
      error_of<RunError>([&] { write_safetensors(folder / "none" / "t", tensors); }).find("No such file"),
      std::string::npos);
  const std::vector<TensorView> twice{floats(), floats()};
  EXPECT_THROW(write_safetensors(folder / "t", twice), RunError);
  const std::vector<TensorView> unknown{{"a", "F31", {1}, kFloats.data()}};
  EXPECT_THROW(write_safetensors(folder / "t", unknown), RunError);
  EXPECT_FALSE(std::filesystem::exists(folder / "t"));
}

TEST(Safetensors, SmallSetsAreOneFile) {
  const TemporaryFolder folder;
  EXPECT_EQ(write_sharded(folder.path(), "model", std::vector<TensorView>{floats()}, 24),
            std::vector<std::string>{"model.safetensors"});
  const ShardedReader reader(folder.path(), "model");
  EXPECT_EQ(reader.names(), std::vector<std::string>{"b.weight"});
  EXPECT_EQ(SafetensorsFile(folder / "model.safetensors").metadata().at("format"), "pt");
}

TEST(Safetensors, LargeSetsAreShardedLikeInHuggingFace) {
  const TemporaryFolder folder;
  write_sharded(folder.path(), "model", std::vector<TensorView>{floats()}, 24);
  const std::vector<TensorView> tensors{
      floats("z"), floats("y"), {"x", "U8", {3}, kBytes.data()}, floats("w")};
  EXPECT_EQ(write_sharded(folder.path(), "model", tensors, 30),
            (std::vector<std::string>{"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                      "model-00003-of-00003.safetensors", "model.safetensors.index.json"}));
  EXPECT_FALSE(std::filesystem::exists(folder / "model.safetensors")) << "two models in one folder";
  const auto index = nlohmann::json::parse(read_bytes(folder / "model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 75);
  EXPECT_EQ(index["weight_map"]["x"], "model-00002-of-00003.safetensors");

  const ShardedReader reader(folder.path(), "model");
  EXPECT_EQ(reader.names(), (std::vector<std::string>{"w", "x", "y", "z"}));
  EXPECT_EQ(static_cast<const float*>(reader.find("w")->data)[1], -2.25f);
  EXPECT_EQ(reader.find("v"), nullptr);

  EXPECT_EQ(write_sharded(folder.path(), "model", std::vector<TensorView>{floats()}, 24).size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(folder / "model.safetensors.index.json"));
}

TEST(Safetensors, InvalidIndexes) {
  const TemporaryFolder folder;
  const auto index = folder / "model.safetensors.index.json";
  const auto message = [&](const std::string& text) {
    write_bytes(index, text);
    return error_of<UserError>([&] { ShardedReader(folder.path(), "model"); });
  };
  EXPECT_NE(error_of<UserError>([&] {
              ShardedReader(folder.path(), "model");
            }).find("found neither model.safetensors nor model.safetensors.index.json"),
            std::string::npos);
  write_safetensors(folder / "one.safetensors", std::vector<TensorView>{floats("a")});
  EXPECT_NE(message("").find("is empty"), std::string::npos);
  EXPECT_NE(message("{").find("byte 1: found invalid JSON"), std::string::npos);
  EXPECT_NE(message("[]").find("found no weight_map object"), std::string::npos);
  EXPECT_NE(message(R"({"weight_map":{"a":"../one.safetensors"}})").find("\"a\": found \"../one"),
            std::string::npos);
  EXPECT_NE(message(R"({"weight_map":{"a":7}})").find("found 7"), std::string::npos);
  EXPECT_NE(message(R"({"weight_map":{"a":"two.safetensors"}})").find("two.safetensors: cannot be read"),
            std::string::npos);
  EXPECT_NE(
      message(R"({"weight_map":{"b":"one.safetensors"}})").find("one.safetensors: entry \"b\" is missing"),
      std::string::npos);
}

}  // namespace safetensors_test
}  // namespace hero
