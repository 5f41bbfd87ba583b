#pragma once
// A command of this program in a process of its own.
#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace hero {

class Child {
 public:
  /// Starts this program with `words`; what it prints is added to the file `log`. It is told to stop when
  /// this process is gone. RunError where it cannot be started.
  Child(const std::vector<std::string>& words, const std::filesystem::path& log);
  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) noexcept;
  /// Kills and waits for a process that still runs.
  ~Child();

  /// Its exit status, 128 + n after signal n; nothing while it runs.
  std::optional<int> status();
  void send(int signal) const;

 private:
  pid_t process_ = 0;
};

}  // namespace hero
