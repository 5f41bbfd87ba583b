#include "io/line_process.h"

#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "io/error.h"

namespace hero {
namespace {

using Deadline = std::chrono::steady_clock::time_point;

std::vector<char*> null_terminated(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

// The handlers of this process do not exist in the child; signals that it ignores or blocks would stay so.
void reset_signals(posix_spawnattr_t& attributes) {
  sigset_t none, pipe;
  ::sigemptyset(&none);
  ::sigemptyset(&pipe);
  ::sigaddset(&pipe, SIGPIPE);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &pipe);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
}

}  // namespace

LineProcess::LineProcess(const std::vector<std::string>& words, const std::vector<std::string>& environment) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw RunError(std::string("cannot create a socket: ") + std::strerror(errno));
  std::vector<std::string> line = words, variables = environment;
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  reset_signals(attributes);
  const int failed = ::posix_spawnp(&process_, line[0].c_str(), &actions, &attributes,
                                    null_terminated(line).data(), null_terminated(variables).data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  socket_ = ends[0];
  if (failed) {
    process_ = 0;
    ::close(socket_);
    throw RunError(words[0] + ": cannot start: " + std::strerror(failed));
  }
}

LineProcess::~LineProcess() {
  ::close(socket_);
  if (process_ <= 0) return;
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
}

std::string LineProcess::exchange(std::string line, size_t max_answer, Deadline deadline) {
  line += '\n';
  for (std::string_view rest = line; !rest.empty();) {
    wait_for(POLLOUT, deadline);
    const auto sent = ::send(socket_, rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      rest.remove_prefix(static_cast<size_t>(sent));
    } else if (errno != EAGAIN && errno != EINTR) {
      fail_ended();
    }
  }
  std::string answer;
  char part[1 << 16];
  for (;;) {
    wait_for(POLLIN, deadline);
    const auto received = ::recv(socket_, part, sizeof part, MSG_DONTWAIT);
    if (received < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (received <= 0) fail_ended();
    answer.append(part, static_cast<size_t>(received));
    if (answer.size() > max_answer + 1)
      throw RunError("found an answer of more than " + std::to_string(max_answer) + " bytes");
    if (answer.back() == '\n') break;  // one line per exchange
  }
  answer.pop_back();
  return answer;
}

void LineProcess::wait_for(short event, Deadline deadline) const {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) throw RunError("found no answer within the time limit");
    pollfd entry{socket_, event, 0};
    const int found = ::poll(&entry, 1, static_cast<int>(std::min<int64_t>(left.count(), 1 << 30)));
    if (found > 0) return;
    if (found < 0 && errno != EINTR) throw RunError(std::string("cannot wait: ") + std::strerror(errno));
  }
}

bool LineProcess::ended() {
  if (process_ > 0 && ::waitpid(process_, &status_, WNOHANG) == process_) process_ = 0;
  return process_ == 0;
}

void LineProcess::fail_ended() {
  // Its socket closes shortly before it has ended.
  for (int i = 0; i < 100 && !ended(); ++i) ::usleep(1000);
  if (process_ > 0) {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, &status_, 0);
    process_ = 0;
  }
  throw RunError(WIFSIGNALED(status_)
                     ? "the process ended with signal " + std::to_string(WTERMSIG(status_))
                     : "the process ended with status " + std::to_string(WEXITSTATUS(status_)));
}

}  // namespace hero
