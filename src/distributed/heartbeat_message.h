#pragma once
// The periodic status message of a process.
#include <cstdint>
#include <string>

namespace hero {

struct HeartbeatMessage {
  int64_t sequence_number = 0;  ///< if it stops increasing, the process is unresponsive
  int64_t step = 0;
  std::string operation;       ///< collective in progress; empty: computing
  std::string last_operation;  ///< previous collective
  std::string process;         ///< host and pid
  bool ended = false;          ///< last message of a process that ends normally
  uint64_t bytes_hashed = 0;   ///< so far; that of rank 0 includes all ranks
};

/// The current status of this process.
HeartbeatMessage make_heartbeat_message(int64_t sequence_number, bool ended);

std::string dump(const HeartbeatMessage& message);
HeartbeatMessage parse_heartbeat_message(const std::string& text);

/// "host HOST, pid PID" of this process.
std::string host_and_pid();

/// "at step 41 in all_to_all over expert ranks, operation 12", "at step 41, computing after all_to_all ...".
std::string describe(const HeartbeatMessage& message);

/// "12 s", "1.5 s".
std::string format_seconds(double value);

}  // namespace hero
