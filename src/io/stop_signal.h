#pragma once

namespace hero {

/// Installs handlers for SIGINT and SIGTERM. The first one is recorded and acknowledged on stderr if
/// `announce`; repetitions within a second are ignored (some terminals and `timeout` send a signal twice);
/// later ones terminate the process.
void catch_stop_signals(bool announce = true);

/// The recorded stop signal; 0: none.
int stop_signal();

}  // namespace hero
