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

// Only async-signal-safe calls: other threads may hold locks during the fork.
[[noreturn]] void exec_self(char* const* arguments, int output, bool errors) {
  ::setpgid(0, 0);  // Ctrl-C reaches only the parent, which forwards it
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  ::dup2(output, STDOUT_FILENO);
  if (errors) ::dup2(output, STDERR_FILENO);
  ::execv("/proc/self/exe", arguments);
  ::_exit(127);
}

int exit_status(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& words) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw RunError(std::string("cannot create a pipe: ") + std::strerror(errno));
  output_.reset(::fdopen(ends[0], "r"));
  start(words, ends[1], /*errors=*/false);
}

ChildProcess::ChildProcess(const std::vector<std::string>& words, const std::filesystem::path& log) {
  const int file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0) throw RunError("cannot write " + log.string() + ": " + std::strerror(errno));
  start(words, file, /*errors=*/true);
}

// Redirects stdout, and stderr if `errors`, to the descriptor `output` and closes it here.
void ChildProcess::start(const std::vector<std::string>& words, int output, bool errors) {
  std::vector<std::string> line = {"hero"};
  line.insert(line.end(), words.begin(), words.end());
  std::vector<char*> arguments;
  for (auto& word : line) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  process_ = ::fork();
  if (process_ == 0) exec_self(arguments.data(), output, errors);
  const int reason = errno;
  ::close(output);
  if (process_ < 0) throw RunError(std::string("cannot start a process: ") + std::strerror(reason));
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : process_(std::exchange(other.process_, 0)), output_(std::move(other.output_)) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(process_, other.process_);
  std::swap(output_, other.output_);
  return *this;
}

ChildProcess::~ChildProcess() {
  if (process_ <= 0) return;
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
}

std::optional<std::string> ChildProcess::read_line() {
  if (!output_) return std::nullopt;
  std::string line;
  for (int c; (c = std::getc(output_.get())) != EOF;) {
    if (c == '\n') return line;
    line += static_cast<char>(c);
  }
  return std::nullopt;
}

std::optional<int> ChildProcess::status() {
  int status = 0;
  if (process_ <= 0 || ::waitpid(process_, &status, WNOHANG) != process_) return std::nullopt;
  process_ = 0;
  return exit_status(status);
}

int ChildProcess::wait() {
  int status = 0;
  while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) {
  }
  process_ = 0;
  return exit_status(status);
}

void ChildProcess::send(int signal) const {
  if (process_ > 0) ::kill(process_, signal);
}

}  // namespace hero
