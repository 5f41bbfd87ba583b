// The child is this test program, started with GoogleTest's own arguments.
#include "io/child_process.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>

#include "data/files.h"

namespace hero {
namespace child_process_test {

std::vector<std::string> list_tests() { return {"--gtest_list_tests", "--gtest_filter=ChildProcess.*"}; }

// Prints lines without end, and waits when the pipe is full.
std::vector<std::string> endless() {
  return {"--gtest_repeat=-1", "--gtest_filter=JsonReader.LimitsTheDepth", "--gtest_brief=0"};
}

TEST(ChildProcess, LinesOfStdoutAndExitStatus) {
  ChildProcess child(list_tests());
  std::vector<std::string> lines;
  while (const auto line = child.read_line()) lines.push_back(*line);
  EXPECT_EQ(child.wait(), 0);
  const std::vector<std::string> last(lines.end() - std::min<size_t>(lines.size(), 4), lines.end());
  EXPECT_EQ(last, (std::vector<std::string>{"ChildProcess.", "  LinesOfStdoutAndExitStatus",
                                            "  OutputAppendedToALog", "  SignalsEndIt"}));
}

TEST(ChildProcess, OutputAppendedToALog) {
  const TemporaryFolder folder;
  const auto log = folder.write("run.log", "first\n");
  ChildProcess child(list_tests(), log);
  EXPECT_FALSE(child.read_line()) << "the log receives the output";
  EXPECT_EQ(child.wait(), 0);
  const auto text = contents(log);
  EXPECT_EQ(text.find("first\n"), 0u) << text;
  EXPECT_NE(text.find("\n  SignalsEndIt\n"), text.npos) << text;
  EXPECT_THROW(ChildProcess(list_tests(), folder / "none/run.log"), RunError);
}

TEST(ChildProcess, SignalsEndIt) {
  ChildProcess first(endless());
  EXPECT_TRUE(first.read_line());
  EXPECT_EQ(first.status(), std::nullopt);
  ChildProcess moved(std::move(first));
  moved.send(SIGTERM);
  EXPECT_EQ(moved.wait(), 128 + SIGTERM);
  moved.send(SIGTERM);  // no effect: the process has ended
  EXPECT_EQ(moved.status(), std::nullopt);
  const ChildProcess killed(endless());  // by its destructor, which would wait without end otherwise
}

}  // namespace child_process_test
}  // namespace hero
