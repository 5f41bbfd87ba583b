#include "io/line_process.h"

#include <gtest/gtest.h>

#include <string>

#include "io/error.h"

namespace line_process_test {

using namespace std::chrono_literals;
using hero::LineProcess;

std::chrono::steady_clock::time_point in(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

std::string run_error(LineProcess& process, size_t max_answer, std::chrono::milliseconds time) {
  try {
    process.exchange("abcdef", max_answer, in(time));
  } catch (const hero::RunError& error) {
    return error.what();
  }
  return "";
}

TEST(LineProcess, AnswersLines) {
  LineProcess cat({"cat"}, {});
  EXPECT_EQ(cat.exchange("one", 3, in(10s)), "one");
  EXPECT_EQ(cat.exchange("", 0, in(10s)), "");
  // More than the buffers of a socket.
  LineProcess reader({"sh", "-c", "while read -r line; do echo \"$line\"; done"}, {"PATH=/usr/bin:/bin"});
  const std::string large(3'000'000, 'x');
  EXPECT_EQ(reader.exchange(large, large.size(), in(60s)), large);
  EXPECT_FALSE(reader.ended());
}

TEST(LineProcess, HasOnlyTheGivenEnvironment) {
  LineProcess shell({"sh", "-c", "read line; set -f; echo $VALUE-$HERO_OTHER"}, {"VALUE=7"});
  ::setenv("HERO_OTHER", "secret", 1);
  EXPECT_EQ(shell.exchange("", 100, in(10s)), "7-");
  ::unsetenv("HERO_OTHER");
}

TEST(LineProcess, Failures) {
  LineProcess slow({"sleep", "60"}, {});
  EXPECT_EQ(run_error(slow, 10, 100ms), "found no answer within the time limit");
  LineProcess cat({"cat"}, {});
  EXPECT_EQ(run_error(cat, 5, 10s), "found an answer of more than 5 bytes");
  LineProcess failing({"sh", "-c", "read line; exit 3"}, {});
  EXPECT_EQ(run_error(failing, 5, 10s), "the process ended with status 3");
  EXPECT_TRUE(failing.ended());
  LineProcess killed({"sh", "-c", "read line; kill -KILL $$"}, {});
  EXPECT_EQ(run_error(killed, 5, 10s), "the process ended with signal 9");
  EXPECT_THROW(LineProcess({"no-such-program-7"}, {}), hero::RunError);
}

}  // namespace line_process_test
