#pragma once
// Runs a command of this program in a child process.
#include <sys/types.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace hero {

/// The child is in a process group of its own, so that Ctrl-C reaches only this process, and receives SIGTERM
/// when the thread that started it exits.
class ChildProcess {
 public:
  /// Starts this program with the arguments `words`. read_line() reads its stdout; its stderr is this
  /// process's. RunError if it cannot be started.
  explicit ChildProcess(const std::vector<std::string>& words);
  /// The same with stdout and stderr appended to the file `log`.
  ChildProcess(const std::vector<std::string>& words, const std::filesystem::path& log);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  /// Kills a running child and waits for it.
  ~ChildProcess();

  /// The next line of the child's stdout, without its line feed; nullopt at the end of the output, and always
  /// if a log receives the output.
  std::optional<std::string> read_line();
  /// Exit status, 128 + n after signal n; nullopt while the child runs. Once per child.
  std::optional<int> status();
  /// The same, after waiting for the end of the child.
  int wait();
  void send(int signal) const;

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  void start(const std::vector<std::string>& words, int output, bool errors);

  pid_t process_ = 0;
  std::unique_ptr<std::FILE, Close> output_;
};

}  // namespace hero
