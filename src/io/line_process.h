#pragma once
// A child process that answers lines with lines.
#include <sys/types.h>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

namespace hero {

/// Its stdin and stdout are one socket; its stderr is this process's. It is in a process group of its own, so
/// that Ctrl-C does not reach it, and is expected to end when its stdin does.
class LineProcess {
 public:
  /// `words`: a program, searched in PATH, and its arguments; `environment`: all of its variables, as
  /// NAME=VALUE. RunError if it cannot be started.
  LineProcess(const std::vector<std::string>& words, const std::vector<std::string>& environment);
  LineProcess(const LineProcess&) = delete;
  LineProcess& operator=(const LineProcess&) = delete;
  /// Kills a running child and waits for it.
  ~LineProcess();

  bool ended();
  /// Sends `line`, to which it adds a line feed, and returns the answer without its own. RunError if the
  /// child ends before, answers after `deadline`, or with more than `max_answer` bytes: it is not usable
  /// then.
  std::string exchange(std::string line, size_t max_answer, std::chrono::steady_clock::time_point deadline);

 private:
  void wait_for(short event, std::chrono::steady_clock::time_point deadline) const;
  [[noreturn]] void fail_ended();

  pid_t process_ = 0;  // 0: it has ended
  int status_ = 0;     // of an ended process, as from waitpid
  int socket_ = -1;
};

}  // namespace hero
