#pragma once

namespace hero {

/// Installs handlers: the first SIGINT or SIGTERM is recorded, the second terminates the process.
void catch_stop_signals();

/// The recorded stop signal; 0: none.
int stop_signal();

}  // namespace hero
