#include "io/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "io/error.h"

namespace hero {
namespace {

[[noreturn]] void exec_self(std::vector<std::string>& words, int log) {
  ::setpgid(0, 0);  // Ctrl-C reaches only the parent, which forwards it
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  ::dup2(log, STDOUT_FILENO);
  ::dup2(log, STDERR_FILENO);
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execv("/proc/self/exe", arguments.data());
  ::_exit(127);
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& words, const std::filesystem::path& log) {
  const int file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0) throw RunError("cannot write " + log.string() + ": " + std::strerror(errno));
  std::vector<std::string> line = {"hero"};
  line.insert(line.end(), words.begin(), words.end());
  process_ = ::fork();
  if (process_ == 0) exec_self(line, file);
  const int reason = errno;
  ::close(file);
  if (process_ < 0) throw RunError(std::string("cannot start a process: ") + std::strerror(reason));
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept : process_(std::exchange(other.process_, 0)) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(process_, other.process_);
  return *this;
}

ChildProcess::~ChildProcess() {
  if (process_ <= 0) return;
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
}

std::optional<int> ChildProcess::status() {
  int status = 0;
  if (process_ <= 0 || ::waitpid(process_, &status, WNOHANG) != process_) return std::nullopt;
  process_ = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void ChildProcess::send(int signal) const {
  if (process_ > 0) ::kill(process_, signal);
}

}  // namespace hero
