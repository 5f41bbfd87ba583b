#include "train/metrics.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "hf/temporary_folder.h"
#include "io/error.h"

namespace hero {
namespace metrics_test {

using test::error_of;
using test::read_bytes;
using test::TemporaryFolder;
using test::write_bytes;
using Line = nlohmann::ordered_json;

TEST(MetricsLog, PreservesKeyOrderAndExactValues) {
  const TemporaryFolder run;
  const std::vector<double> values{
      0.1,  1.0 / 3,   static_cast<double>(0.1f), 1e-310,        5e-324, 1.7976931348623157e308,
      -0.0, 123456789, 9007199254740993.0,        6.62607015e-34};
  {
    MetricsLog log(run / "metrics.jsonl");
    for (size_t i = 0; i < values.size(); ++i)
      log.append(Line{{"step", i + 1}, {"loss", values[i]}, {"a", "é"}});
  }
  std::istringstream text(read_bytes(run / "metrics.jsonl"));
  std::string line;
  for (const double number : values) {
    ASSERT_TRUE(std::getline(text, line));
    const double found = Line::parse(line)["loss"].get<double>();
    EXPECT_EQ(std::bit_cast<uint64_t>(found), std::bit_cast<uint64_t>(number)) << line;
  }
  EXPECT_FALSE(std::getline(text, line));
  EXPECT_EQ(read_bytes(run / "metrics.jsonl").rfind("{\"step\":1,\"loss\":0.1,\"a\":\"é\"}\n", 0), 0u);
}

TEST(MetricsLog, NonFiniteValuesAreNull) {
  const TemporaryFolder run;
  MetricsLog log(run / "m");
  log.append(Line{{"step", 1}, {"a", std::nan("")}, {"b", -std::numeric_limits<double>::infinity()}});
  EXPECT_EQ(read_bytes(run / "m"), "{\"step\":1,\"a\":null,\"b\":null}\n");
}

TEST(MetricsLog, AddsToTheLastLine) {
  const TemporaryFolder run;
  MetricsLog log(run / "m");
  for (const int64_t step : {1, 2})
    log.append(Line{{"step", step}, {"loss", 0.1}, {"z", 1.0}, {"a", nullptr}});
  log.add_to_last(2, Line{{"valid", {{"x", 0.3}}}, {"b", 2}});
  log.append(Line{{"step", 3}});
  EXPECT_EQ(read_bytes(run / "m"),
            "{\"step\":1,\"loss\":0.1,\"z\":1.0,\"a\":null}\n"
            "{\"step\":2,\"loss\":0.1,\"z\":1.0,\"a\":null,\"valid\":{\"x\":0.3},\"b\":2}\n"
            "{\"step\":3}\n");
  const auto before = read_bytes(run / "m");
  log.add_to_last(2, Line{{"c", 1}});
  EXPECT_EQ(read_bytes(run / "m"), before);
}

TEST(MetricsLog, ContinuesAfterAnIncompleteLine) {
  const TemporaryFolder run;
  write_bytes(run / "m", "{\"step\":1}\n{\"step\":2,\"lo");
  MetricsLog log(run / "m");
  EXPECT_EQ(read_bytes(run / "m"), "{\"step\":1}\n");
  log.append(Line{{"step", 2}});
  EXPECT_EQ(read_bytes(run / "m"), "{\"step\":1}\n{\"step\":2}\n");

  write_bytes(run / "long", "{\"step\":1}\n" + std::string(200000, 'x'));
  const MetricsLog after_long(run / "long");
  EXPECT_EQ(read_bytes(run / "long"), "{\"step\":1}\n");
  write_bytes(run / "only", std::string(70000, 'x'));
  const MetricsLog after_only(run / "only");
  EXPECT_EQ(read_bytes(run / "only"), "");
}

TEST(MetricsLog, TruncateKeepsExactlyTheLinesUpToTheStep) {
  const TemporaryFolder run;
  const std::string spaced = "{ \"loss\" : 1.50,  \"step\":2 }\n";
  write_bytes(run / "m",
              "{\"step\":1}\n" + spaced + "{\"step\":3}\n{\"step\":2,\"again\":true}\n{\"step\":4}\n");
  MetricsLog log(run / "m");
  log.truncate_after(2);
  EXPECT_EQ(read_bytes(run / "m"), "{\"step\":1}\n" + spaced + "{\"step\":2,\"again\":true}\n");
  log.append(Line{{"step", 3}});
  EXPECT_EQ(read_bytes(run / "m"), "{\"step\":1}\n" + spaced + "{\"step\":2,\"again\":true}\n{\"step\":3}\n")
      << "appends to the new file";
  log.truncate_after(0);
  EXPECT_EQ(read_bytes(run / "m"), "");
  EXPECT_FALSE(std::filesystem::exists(run / "m.tmp"));
}

TEST(MetricsLog, TruncatesLargeFiles) {
  const TemporaryFolder run;
  std::string all, kept;
  for (int step = 1; step <= 30000; ++step) {
    const std::string line =
        "{\"step\":" + std::to_string(step) + ",\"text\":\"" + std::string(60, 'x') + "\"}\n";
    all += line;
    if (step <= 29000) kept += line;
  }
  write_bytes(run / "m", all);
  MetricsLog(run / "m").truncate_after(29000);
  EXPECT_TRUE(read_bytes(run / "m") == kept);
}

TEST(MetricsLog, TruncateRemovesDamagedLines) {
  const TemporaryFolder run;
  write_bytes(run / "m", "{\"step\":1}\n" + std::string(20, '\0') + "\n");
  MetricsLog(run / "m").truncate_after(5);
  EXPECT_EQ(read_bytes(run / "m"), "{\"step\":1}\n");
  EXPECT_FALSE(std::filesystem::exists(run / "m.damaged")) << "not for the last line";

  std::string copy = "m.damaged";
  int copies = 1;
  for (const std::string line : {"{\"step\":", "7", "{\"loss\":1}", "{\"step\":1.5}", ""}) {
    const std::string text = "{\"step\":1}\n" + line + "\n{\"step\":3}\n" + line + "\n{\"step\":6}\n";
    write_bytes(run / "m", text);
    testing::internal::CaptureStderr();
    MetricsLog(run / "m").truncate_after(5);
    const std::string warning = testing::internal::GetCapturedStderr();
    EXPECT_NE(warning.find("m: removed 2 damaged lines, the first is line 2; "), std::string::npos)
        << warning;
    EXPECT_NE(warning.find("the file as it was: " + (run / copy).string() + "\n"), std::string::npos)
        << warning;
    EXPECT_EQ(read_bytes(run / "m"), "{\"step\":1}\n{\"step\":3}\n");
    EXPECT_EQ(read_bytes(run / copy), text);
    EXPECT_FALSE(std::filesystem::exists(run / "m.tmp"));
    copy = "m.damaged-" + std::to_string(++copies);
  }
}

// A file size limit simulates a disk that becomes full in the middle of a line.
TEST(MetricsLog, FailedAppendWritesNothing) {
  const TemporaryFolder run;
  const auto write_too_much = [&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{30, 30};
    setrlimit(RLIMIT_FSIZE, &limit);
    MetricsLog log(run / "m");
    log.append(Line{{"step", 1}});
    try {
      log.append(Line{{"step", 2}, {"text", "longer than what is left"}});
    } catch (const RunError&) {
      _exit(0);
    }
    _exit(1);
  };
  EXPECT_EXIT(write_too_much(), testing::ExitedWithCode(0), "");
  EXPECT_EQ(read_bytes(run / "m"), "{\"step\":1}\n");
}

TEST(MetricsLog, SystemErrorsAreRunErrors) {
  const TemporaryFolder run;
  EXPECT_NE(error_of<RunError>([&] { MetricsLog(run / "none" / "m"); }).find("No such file"),
            std::string::npos);
  AppendFile full("/dev/full");
  EXPECT_NE(error_of<RunError>([&] { full.append("x"); }).find("cannot write /dev/full: No space left"),
            std::string::npos);
}

}  // namespace metrics_test
}  // namespace hero
