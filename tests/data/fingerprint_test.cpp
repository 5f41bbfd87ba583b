#include "data/fingerprint.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/files.h"

namespace hero {
namespace fingerprint_test {

constexpr int64_t kLarge = (5 << 20) + 3;  // more than the bytes that are sampled

void flip(const std::string& path, int64_t at) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(at);
  const int byte = file.get();
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 1));
}

TEST(TokenFileDigests, change_with_the_files) {
  const TemporaryFolder folder;
  const std::string small = folder / "small", large = folder / "large-train";
  for (const std::string& file : {small + ".idx", small + ".bin", large + ".idx"})
    std::ofstream(file) << "some bytes";
  std::ofstream(large + ".bin") << std::string(kLarge, 'a');
  const std::vector<std::string> sources = {small, large};
  const TokenFileDigests before = digest_token_files(sources);
  ASSERT_EQ(before.size(), 4U);
  EXPECT_EQ(before.at(large + ".bin").bytes, static_cast<uint64_t>(kLarge));
  EXPECT_TRUE(changed_token_files(digest_token_files(sources), before).empty());
  const std::pair<std::string, int64_t> places[] = {
      {small + ".idx", 9}, {small + ".bin", 5}, {large + ".bin", 0}, {large + ".bin", kLarge - 1}};
  for (const auto& [file, at] : places) {
    flip(file, at);
    const auto found = digest_token_files(sources);
    const auto changes = changed_token_files(found, before);
    ASSERT_EQ(changes.size(), 1U) << file << " " << at;
    EXPECT_EQ(changes.at(file),
              file + ": found " + describe(found.at(file)) + ", expected " + describe(before.at(file)));
    flip(file, at);
  }
  flip(large + ".bin", 70'000);  // between the first two samples of 65536 bytes
  EXPECT_TRUE(changed_token_files(digest_token_files(sources), before).empty());
}

TEST(TokenFileDigests, with_loss_masks) {
  const TemporaryFolder folder;
  for (const std::string file : {"a.idx", "a.bin", "a-mask.idx", "a-mask.bin"})
    folder.write(file, "some bytes");
  const std::vector<std::string> sources = {folder / "a"};
  const TokenFileDigests before = digest_token_files(sources, /*loss_mask=*/true);
  ASSERT_EQ(before.size(), 4U);
  flip(folder / "a-mask.bin", 3);
  const auto changes = changed_token_files(digest_token_files(sources, true), before);
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_TRUE(changes.contains(folder / "a-mask.bin"));
  EXPECT_EQ(digest_token_files(sources).size(), 2U) << "a mask that is not used";
}

TEST(TokenFileDigests, other_files) {
  const TokenFileDigests found = {{"a.bin", {1, "11"}}}, expected = {{"b.bin", {2, "22"}}};
  const auto changes = changed_token_files(found, expected);
  ASSERT_EQ(changes.size(), 2U);
  EXPECT_EQ(changes.at("a.bin"), "a.bin: found 1 bytes with sha256 11, expected no such file");
  EXPECT_EQ(changes.at("b.bin"), "b.bin: found no such file, expected 2 bytes with sha256 22");
  EXPECT_TRUE(changed_token_files(found, {}).empty()) << "a checkpoint without digests";
}

}  // namespace fingerprint_test
}  // namespace hero
