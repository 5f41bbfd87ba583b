#pragma once
// Who this process is among those of a run. torchrun says so, or any launcher that sets RANK, WORLD_SIZE,
// MASTER_ADDR and MASTER_PORT; without these, it is one process alone.
#include <cstdint>
#include <string>

namespace hero {

/// What the launcher says.
struct Launch {
  int64_t rank = 0, size = 1;
  int64_t local_rank = 0, local_size = 1;  ///< among the processes of this machine
  std::string host;                        ///< MASTER_ADDR; empty: alone
  int64_t port = 0;
  std::string run;           ///< TORCHELASTIC_RUN_ID
  int64_t restarts = 0;      ///< TORCHELASTIC_RESTART_COUNT
  bool agent_store = false;  ///< the launcher serves the store (TORCHELASTIC_USE_AGENT_STORE)
};

/// From the environment. UserError naming the variable that is missing or no number in its bounds.
Launch read_launch();

}  // namespace hero
