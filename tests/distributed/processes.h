#pragma once
// Multi-process tests on one machine. Processes are forked, so the test program must not use tensors before:
// thread pools do not survive a fork.
#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace hero {

struct ExitResult {
  int status;         ///< exit status, or the negative signal number
  std::string error;  ///< stderr
};

/// Processes with RANK, WORLD_SIZE, LOCAL_*, MASTER_ADDR and MASTER_PORT set. The destructor kills those
/// still running.
class Processes {
 public:
  /// Each runs `work`. Exit status: 0; 3 after failed expectations; 2 after a UserError and 1 after another
  /// exception, whose message goes to stderr.
  Processes(int count, const std::function<void()>& work,
            const std::map<std::string, std::string>& environment = {});
  ~Processes();
  Processes(const Processes&) = delete;

  pid_t pid(int rank) const { return pids_[rank]; }
  /// The process's stderr so far.
  std::string error(int rank) const;
  /// Waits for exit. After `seconds`: SIGKILL and a test failure.
  ExitResult wait(int rank, double seconds);

 private:
  std::vector<pid_t> pids_;  // 0: already reaped
  std::vector<int> errors_;  // file descriptors
};

/// Runs `work` in `count` processes; expects all to exit with status 0 within two minutes.
void run_processes(int count, const std::function<void()>& work);

}  // namespace hero
