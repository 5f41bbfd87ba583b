#include "io/stop_signal.h"

#include <csignal>

namespace hero {
namespace {

volatile std::sig_atomic_t received = 0;

void remember(int number) {
  received = number;
  std::signal(number, SIG_DFL);
}

}  // namespace

void catch_stop_signals() {
  std::signal(SIGINT, remember);
  std::signal(SIGTERM, remember);
}

int stop_signal() { return received; }

}  // namespace hero
