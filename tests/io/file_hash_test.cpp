#include "io/file_hash.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace hero {
namespace file_hash_test {

TEST(FileHash, counts_the_bytes_of_every_block) {
  const auto path = std::filesystem::temp_directory_path() / ("hash-" + std::to_string(getpid()));
  std::ofstream(path) << std::string(3'000'000, 'a');
  const uint64_t before = bytes_hashed();
  EXPECT_EQ(hash_file(path).bytes, 3'000'000U);
  EXPECT_EQ(bytes_hashed() - before, 3'000'000U);
  RunningHash hash;
  hash.add("ab", 2);
  EXPECT_EQ(bytes_hashed() - before, 3'000'002U) << "during hashing, not at its end";
  std::filesystem::remove(path);
}

}  // namespace file_hash_test
}  // namespace hero
