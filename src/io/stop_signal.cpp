#include "io/stop_signal.h"

#include <csignal>

namespace hero {
namespace {

volatile std::sig_atomic_t received = 0;

void record_signal(int number) {
  received = number;
  std::signal(number, SIG_DFL);
}

}  // namespace

void catch_stop_signals() {
  std::signal(SIGINT, record_signal);
  std::signal(SIGTERM, record_signal);
}

int stop_signal() { return received; }

}  // namespace hero
