#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/example_run.h"

namespace hero::test {

int64_t save_until_killed(const std::filesystem::path& run, int64_t first_step, int64_t microseconds) {
  int channel[2];
  if (pipe(channel) != 0) throw std::runtime_error("no pipe");
  const pid_t child = fork();
  if (child == 0) {
    for (int64_t step = first_step;; ++step) {
      try {
        save_example(run, step);
        save_example(run, step);
      } catch (...) {
        _exit(3);
      }
      if (write(channel[1], &step, sizeof step) != sizeof step) _exit(4);
    }
  }
  close(channel[1]);
  usleep(static_cast<useconds_t>(microseconds));
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status)) << "the child failed by itself: " << WEXITSTATUS(status);
  int64_t step = 0, last = first_step - 1;
  while (read(channel[0], &step, sizeof step) == sizeof step) last = step;
  close(channel[0]);
  return last;
}

}  // namespace hero::test
