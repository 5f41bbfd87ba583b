#pragma once
// Tests with several processes of one run on this machine. Processes are forked: the test program itself may
// use no tensors before, because thread pools do not survive a fork.
#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace hero {

struct Ended {
  int status;         ///< exit status; minus the signal that ended it
  std::string error;  ///< what it wrote to stderr
};

/// Processes with RANK, WORLD_SIZE, LOCAL_*, MASTER_ADDR and MASTER_PORT set. Those still there are killed at
/// the end.
class Processes {
 public:
  /// Each runs `work` and ends with status 0; 3 after failed expectations; after an exception, which it
  /// writes to stderr, 2 for a UserError and 1 for another.
  Processes(int count, const std::function<void()>& work,
            const std::map<std::string, std::string>& environment = {});
  ~Processes();
  Processes(const Processes&) = delete;

  pid_t pid(int rank) const { return pids_[rank]; }
  /// What the process has written to stderr so far.
  std::string error(int rank) const;
  /// Until the process has ended; a test failure, and SIGKILL, after `seconds`.
  Ended wait(int rank, double seconds);

 private:
  std::vector<pid_t> pids_;  // 0: waited for
  std::vector<int> errors_;  // files
};

/// Runs `work` in `count` processes; expects that all end with status 0 within two minutes.
void run_processes(int count, const std::function<void()>& work);

}  // namespace hero
