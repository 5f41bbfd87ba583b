#pragma once

namespace hero {

/// From here on the first SIGINT or SIGTERM is only remembered; the second ends the process at once.
void catch_stop_signals();

/// The signal that asked this process to stop; 0: none so far.
int stop_signal();

}  // namespace hero
