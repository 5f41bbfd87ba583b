#pragma once
// Rank and world size, from the environment variables that torchrun or another launcher sets: RANK,
// WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Without these, a single process.
#include <cstdint>
#include <string>

namespace hero {

/// Settings from the launcher.
struct Launch {
  int64_t rank = 0, world_size = 1;
  int64_t local_rank = 0, local_world_size = 1;  ///< on this machine
  std::string host;                              ///< MASTER_ADDR; empty: single process
  int64_t port = 0;                              ///< MASTER_PORT
  std::string run_id;                            ///< TORCHELASTIC_RUN_ID
  int64_t restart_count = 0;                     ///< TORCHELASTIC_RESTART_COUNT
  bool agent_store = false;  ///< the launcher hosts the store (TORCHELASTIC_USE_AGENT_STORE)
};

/// Reads the environment. UserError naming a variable that is missing, not a number or out of range.
Launch read_launch();

}  // namespace hero
