#include "io/terminal_lines.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <utility>

#include "io/error.h"

namespace hero {
namespace {

volatile std::sig_atomic_t interrupted = 0;

void record_interrupt(int /*number*/) { interrupted = 1; }

}  // namespace

void catch_interrupts() {
  struct sigaction action = {};  // without SA_RESTART: it ends a read
  action.sa_handler = record_interrupt;
  ::sigaction(SIGINT, &action, nullptr);
}

bool take_interrupt() {
  if (!interrupted) return false;
  interrupted = 0;
  return true;
}

TerminalLines::TerminalLines(std::string prompt)
    : prompt_(std::move(prompt)), interactive_(::isatty(STDIN_FILENO) != 0) {}

std::optional<std::string> TerminalLines::next() {
  const auto show_prompt = [this] {
    if (!interactive_) return;
    std::fputs(prompt_.c_str(), stdout);
    std::fflush(stdout);
  };
  take_interrupt();  // it was for an answer that has ended
  show_prompt();
  for (size_t searched = 0;;) {
    if (const size_t end = pending_.find('\n', searched); end != pending_.npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return line;
    }
    if (ended_) {
      if (interactive_) std::fputs("\n", stdout);
      if (pending_.empty()) return std::nullopt;
      return std::exchange(pending_, {});
    }
    searched = pending_.size();
    char part[4096];
    const auto size = ::read(STDIN_FILENO, part, sizeof part);
    if (size < 0 && errno != EINTR) throw RunError(std::string("stdin: ") + std::strerror(errno));
    if (take_interrupt()) {
      pending_.clear();
      searched = 0;
      std::fputs("\n", stdout);
      show_prompt();
    }
    if (size >= 0) {
      ended_ = size == 0;
      pending_.append(part, static_cast<size_t>(size));
    }
  }
}

}  // namespace hero
