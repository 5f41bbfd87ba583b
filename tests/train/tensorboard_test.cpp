#include "train/tensorboard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "hf/temporary_folder.h"
#include "io/error.h"

namespace hero {
namespace tensorboard_test {

namespace fs = std::filesystem;
using test::read_bytes;
using test::TemporaryFolder;
using test::write_bytes;

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

// Output of RecordWriter of the Python package tensorboard 2.21.0: wall_time 1700000001.5, step 300,
// simple_value 5.4321 with tag train/loss; and the file version event with wall_time 1700000000.25.
constexpr const char* kScalarHex =
    "2100000000000000017becf60900006040fc54d94110ac022a130a110a0a747261696e2f6c6f737315c3d3ad402cfbb61c";
constexpr const char* kVersionHex =
    "1800000000000000a37f4b220900001040fc54d9411a0d627261696e2e4576656e743a32338d2fe9";

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  return files;
}

TEST(TensorBoardLog, MatchesTensorBoardsWriter) {
  const std::string version = from_hex(kVersionHex), scalar = from_hex(kScalarHex);
  const TemporaryFolder folder;
  TensorBoardLog log(folder.path());
  log.scalar("train/loss", 5.4321, 300, 1700000001.5);
  const std::string bytes = read_bytes(log.path());
  ASSERT_EQ(bytes.size(), version.size() + scalar.size());
  EXPECT_EQ(bytes.substr(version.size()), scalar);
  EXPECT_EQ(bytes.substr(0, 13), version.substr(0, 13)) << "length, its checksum, key of the time";
  EXPECT_EQ(bytes.substr(21, 15), version.substr(21, 15)) << "version, after the time";
  EXPECT_EQ(log.path().filename().string().rfind("events.out.tfevents.", 0), 0u);
}

TEST(TensorBoardLog, ContinuesTheFileAfterAnIncompleteRecord) {
  const std::string version = from_hex(kVersionHex), scalar = from_hex(kScalarHex);
  const TemporaryFolder folder;
  const fs::path path = folder / "events.out.tfevents.1700000000.host";
  for (size_t cut = 1; cut <= scalar.size(); ++cut) {
    write_bytes(path, version + scalar + scalar.substr(0, scalar.size() - cut));
    TensorBoardLog(folder.path()).scalar("train/loss", 5.4321, 300, 1700000001.5);
    ASSERT_EQ(read_bytes(path), version + scalar + scalar) << cut;
  }
  EXPECT_EQ(files_in(folder.path()), std::vector<fs::path>{path});
}

TEST(TensorBoardLog, EmptyFileGetsAVersionEvent) {
  const std::string version = from_hex(kVersionHex);
  const TemporaryFolder folder;
  const fs::path path = folder / "events.out.tfevents.1700000000.host";
  write_bytes(path, version.substr(0, 10));
  EXPECT_EQ(TensorBoardLog(folder.path()).path(), path);
  EXPECT_EQ(read_bytes(path).size(), version.size());
}

TEST(TensorBoardLog, TruncateKeepsExactlyTheEventsUpToTheStep) {
  const std::string version = from_hex(kVersionHex);
  const TemporaryFolder folder;
  TensorBoardLog log(folder.path());
  std::string expected;
  for (const int64_t step : {0, 1, 127, 128, 129, 300, 128}) {
    log.scalar("a", static_cast<double>(step), step, 1.0);
    log.scalar("b", std::nan(""), step, 1.0);
    if (step == 128 && expected.empty()) expected = read_bytes(log.path());
  }
  const size_t complete = read_bytes(log.path()).size();
  log.truncate_after(100000);
  EXPECT_EQ(read_bytes(log.path()).size(), complete);
  log.truncate_after(128);
  const std::string kept = read_bytes(log.path());
  EXPECT_EQ(kept.substr(0, expected.size()), expected);
  EXPECT_EQ(kept.substr(expected.size()), expected.substr(expected.size() - (kept.size() - expected.size())))
      << "the second pair of step 128";
  log.scalar("a", 1, 129, 1.0);
  EXPECT_GT(read_bytes(log.path()).size(), kept.size()) << "appends to the new file";
  log.truncate_after(-1);
  EXPECT_EQ(read_bytes(log.path()).size(), version.size()) << "the version event is kept";
  EXPECT_EQ(files_in(folder.path()), std::vector<fs::path>{log.path()});
}

TEST(TensorBoardLog, TruncateDropsEverythingFromADamagedRecordOn) {
  const std::string version = from_hex(kVersionHex), scalar = from_hex(kScalarHex);
  const TemporaryFolder folder;
  const fs::path path = folder / "events.out.tfevents.1700000000.host";
  for (const size_t at : {size_t{0}, size_t{7}, size_t{9}, size_t{30}, scalar.size() - 1}) {
    std::string damaged = scalar;
    damaged[at] ^= 16;
    write_bytes(path, version + scalar + damaged + scalar);
    TensorBoardLog(folder.path()).truncate_after(1000);
    EXPECT_EQ(read_bytes(path), version + scalar) << at;
  }
}

TEST(TensorBoardLog, CreatesTheFolderOrThrowsARunError) {
  const TemporaryFolder folder;
  EXPECT_TRUE(fs::exists(TensorBoardLog(folder / "run" / "tb").path()));
  write_bytes(folder / "file", "");
  const std::string message = test::error_of<RunError>([&] { TensorBoardLog(folder / "file"); });
  EXPECT_NE(message.find("Not a directory"), std::string::npos) << message;
}

// Writes a file for tests/python/train/test_event_file.py, which reads it with TensorBoard.
TEST(TensorBoardLog, FileForPython) {
  const char* folder = std::getenv("HERO_EVENT_FOLDER");
  if (!folder) GTEST_SKIP() << "HERO_EVENT_FOLDER is not set";
  TensorBoardLog log(folder);
  for (int64_t step = 0; step < 500; ++step) {
    log.scalar("train/loss", 1.0 / static_cast<double>(step + 1), step,
               1700000000.0 + static_cast<double>(step));
    log.scalar("router/max expert share", step % 2 ? std::nan("") : 0.25, step, 1700000000.0);
  }
  log.truncate_after(299);
  log.scalar("train/loss", -1.0, 300, 1700001000.0);
}

}  // namespace tensorboard_test
}  // namespace hero
