#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/example_run.h"
#include "io/error.h"

namespace hero::test {

int64_t save_until_killed(const std::filesystem::path& run, int64_t first_step, int64_t microseconds,
                          const Save& save) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) throw std::runtime_error("no pipe");
  const pid_t child = fork();
  if (child == 0) {
    for (int64_t step = first_step;; ++step) {
      try {
        save(run, step);
        save(run, step);
      } catch (...) {
        _exit(3);
      }
      if (write(pipe_ends[1], &step, sizeof step) != sizeof step) _exit(4);
    }
  }
  close(pipe_ends[1]);
  usleep(static_cast<useconds_t>(microseconds));
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status)) << "the child failed by itself: " << WEXITSTATUS(status);
  int64_t step = 0, last = first_step - 1;
  while (read(pipe_ends[0], &step, sizeof step) == sizeof step) last = step;
  close(pipe_ends[0]);
  return last;
}

std::string message_under_limit(uint64_t bytes, const std::function<void()>& save) {
  int pipe_ends[2];
  EXPECT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, bytes};
    setrlimit(RLIMIT_FSIZE, &limit);
    std::string message;
    try {
      save();
    } catch (const RunError& error) {
      message = error.what();
    }
    _exit(write(pipe_ends[1], message.data(), message.size()) == static_cast<ssize_t>(message.size()) ? 0
                                                                                                      : 1);
  }
  close(pipe_ends[1]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  std::string message(4000, '\0');
  message.resize(
      static_cast<size_t>(std::max<ssize_t>(0, read(pipe_ends[0], message.data(), message.size()))));
  close(pipe_ends[0]);
  return message;
}

}  // namespace hero::test
