#include "io/step_progress.h"

#include <gtest/gtest.h>

#include <sstream>

namespace hero {
namespace step_progress_test {

class ProgressLine : public testing::Test {
 protected:
  ProgressOptions options(int columns) {
    ProgressOptions options;
    options.rate_unit = "tok";
    options.rate_per_item = 100;
    options.out = &out_;
    options.columns = columns;
    options.now = [this] { return time_; };
    return options;
  }

  std::string written() {
    const std::string text = out_.str();
    out_.str("");
    return text;
  }

  std::ostringstream out_;
  double time_ = 1000;
};

TEST_F(ProgressLine, FullLinesEveryTenSecondsWithoutTerminal) {
  StepProgress progress("step", 2000, options(0));
  for (int step = 1; step <= 120; ++step) {
    time_ += 0.25;
    progress.update(step, "loss 5.4321");
    if (step < 40) {
      ASSERT_EQ(written(), "") << step;
    } else if (step == 40) {
      EXPECT_EQ(written(), "step 40/2000  loss 5.4321  400 tok/s  left 8:10\n");
    }
  }
  EXPECT_EQ(
      written(),
      "step 80/2000  loss 5.4321  400 tok/s  left 8:00\nstep 120/2000  loss 5.4321  400 tok/s  left 7:50\n");
  progress.finish();
  EXPECT_EQ(written(), "") << "the last state is already shown";
  time_ += 1;
  progress.update(121, "loss 5");
  progress.finish();
  progress.finish();
  EXPECT_EQ(written(), "step 121/2000  loss 5  390 tok/s  left 8:02\n");
}

TEST_F(ProgressLine, RewrittenInPlaceWithinTerminalWidth) {
  {
    StepProgress progress("step", 10, options(20));
    time_ += 1;
    progress.update(1, "loss 1.5");
    EXPECT_EQ(written(), "\rstep 1/10  loss 1.5\x1b[K");
    time_ += 0.01;
    progress.update(2, "loss 1.4");
    EXPECT_EQ(written(), "") << "redrawn at most ten times a second";
    progress.finish();
    EXPECT_EQ(written(), "\rstep 2/10  loss 1.4\x1b[K\n");
    time_ += 1;
    progress.update(3);
    written();
  }
  EXPECT_EQ(written(), "\n") << "an unfinished line is ended, so that an error message starts on a new line";
}

TEST_F(ProgressLine, LinesByItemsWithoutTerminal) {
  auto by_items = options(0);
  by_items.start = 7;
  by_items.line_items = 10;
  StepProgress progress("step", 32, by_items);
  std::string steps;
  for (int step = 8; step <= 32; ++step) {
    time_ += 60;
    progress.update(step, "loss 1.5", "expert 12%");
    if (!written().empty()) steps += std::to_string(step) + " ";
  }
  EXPECT_EQ(steps, "8 10 20 30 ") << "the first one of this process, then multiples";
  progress.finish();
  EXPECT_EQ(written(), "step 32/32  loss 1.5  1.67 tok/s  expert 12%\n");
}

TEST_F(ProgressLine, DropsLastPartsThatDoNotFit) {
  const std::string lines[] = {"step 1/100  loss 1.5  50.0 tok/s  left 3:18  expert 12%",
                               "step 1/100  loss 1.5  50.0 tok/s  left 3:18",
                               "step 1/100  loss 1.5  50.0 tok/s", "step 1/100  loss 1.5", "step 1/100"};
  for (const std::string& line : lines) {
    for (const size_t width : {line.size(), line.size() + 1}) {
      auto narrow = options(0), terminal = options(static_cast<int>(width) + 1);
      narrow.line_width = width;
      narrow.line_items = 1;
      for (const auto& limits : {narrow, terminal}) {
        StepProgress progress("step", 100, limits);
        time_ += 2;
        progress.update(1, "loss 1.5", "expert 12%");
        EXPECT_EQ(written(), limits.columns ? "\r" + line + "\x1b[K" : line + "\n");
        progress.end_line();
        EXPECT_EQ(written(), limits.columns ? "\n" : "");
        progress.end_line();
        EXPECT_EQ(written(), "");
      }
    }
  }
}

TEST_F(ProgressLine, ThroughputUsesRecentWindow) {
  auto slow = options(0);
  slow.window_seconds = 20;
  slow.start = 100;
  slow.line_seconds = 0;
  StepProgress progress("step", 1100, slow);
  time_ += 1000;
  progress.update(110);
  EXPECT_EQ(written(), "step 110/1100  1.00 tok/s  left 27:30:00\n")
      << "items done before the start are excluded";
  for (int i = 1; i <= 10; ++i) {
    time_ += 5;
    progress.update(110 + 50 * i);
  }
  const std::string text = written();
  EXPECT_NE(text.find("step 610/1100  1,000 tok/s  left 0:49\n"), std::string::npos) << text;
}

TEST_F(ProgressLine, UnknownTotalAndFirstStep) {
  auto bare = options(0);
  bare.rate_unit = "";
  bare.rate_per_item = 1;
  bare.line_seconds = 0;
  StepProgress progress("file", 0, bare);
  progress.update(1);
  EXPECT_EQ(written(), "file 1\n") << "no time has elapsed";
  time_ += 2;
  progress.update(25);
  EXPECT_EQ(written(), "file 25  12.5 file/s\n");
}

TEST(ProgressFormat, NumbersAndDurations) {
  EXPECT_EQ(format_with_commas(0), "0");
  EXPECT_EQ(format_with_commas(999), "999");
  EXPECT_EQ(format_with_commas(1000), "1,000");
  EXPECT_EQ(format_with_commas(1234567), "1,234,567");
  EXPECT_EQ(format_with_commas(-123), "-123");
  EXPECT_EQ(format_with_commas(-123456), "-123,456");
  EXPECT_EQ(format_duration(0.4), "0:00");
  EXPECT_EQ(format_duration(59.6), "1:00");
  EXPECT_EQ(format_duration(723), "12:03");
  EXPECT_EQ(format_duration(3600), "1:00:00");
  EXPECT_EQ(format_duration(100 * 3600 + 61), "100:01:01");
}

}  // namespace step_progress_test
}  // namespace hero
