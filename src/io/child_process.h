#pragma once
// Runs a command of this program in a child process.
#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace hero {

class ChildProcess {
 public:
  /// Starts this program with `words` and appends its output to the file `log`. The child receives SIGTERM
  /// when this process exits. RunError if it cannot be started.
  ChildProcess(const std::vector<std::string>& words, const std::filesystem::path& log);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  /// Kills a running child and waits for it.
  ~ChildProcess();

  /// Exit status, 128 + n after signal n; nullopt while the child runs.
  std::optional<int> status();
  void send(int signal) const;

 private:
  pid_t process_ = 0;
};

}  // namespace hero
