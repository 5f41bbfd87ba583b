#pragma once
// Heartbeats. Every process writes one to the store periodically; rank 0 reads all of them, the others read
// rank 0's. A failing process reports its failure in the store, rank 0 adds the unresponsive ranks and their
// last activity, and all processes abort with that message, even if their main thread hangs in a collective.
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "distributed/heartbeat_message.h"
#include "distributed/launch.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace hero {

class Heartbeat {
 public:
  /// `store`: must outlive the Heartbeat and not be used for blocking waits. Terminates this process if a
  /// rank or the store is unresponsive for `timeout` seconds.
  Heartbeat(c10d::Store& store, const Launch& launch, double timeout);
  /// Calls end().
  ~Heartbeat();

  /// Reports that this process has failed; all ranks abort. Returns `failure` plus the state of the other
  /// ranks, after a few heartbeats. The caller must exit; otherwise the process is terminated two seconds
  /// later.
  std::string report_failure(const std::string& failure);

  /// Bytes hashed so far by the other ranks; except on rank 0, the sum over all ranks. Thread-safe.
  uint64_t bytes_hashed_by_others();

  /// Announces the normal end of this process. If it hosts the store, waits until all ranks have ended.
  void end();

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    HeartbeatMessage message;
    Clock::time_point received;
  };

  // Heartbeat thread.
  void heartbeat_loop();
  bool exchange();
  void read_heartbeats();
  void decide_abort();
  std::string describe_missing_ranks() const;
  void acknowledge_abort();
  void deliver_abort_reason();

  void watchdog_loop();
  [[noreturn]] void terminate(const std::string& text) const;
  double seconds_since_heartbeat(int64_t rank) const;
  bool all_ranks_seen() const;
  bool all_ranks_ended() const;
  std::string rank_name(int64_t rank) const;
  std::string store_failure(const std::string& how) const;

  c10d::Store& store_;
  const Launch launch_;
  const double timeout_, interval_, unresponsive_after_;  ///< seconds
  const bool hosts_store_;
  const std::string self_;  ///< "rank 2 (host a, pid 5)"

  // Heartbeat thread only.
  int64_t sequence_number_ = 0;  ///< of the last message
  std::string abort_reason_;     ///< empty: none
  std::optional<Clock::time_point> failure_seen_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Peer> peers_;  ///< on rank 0 all ranks, elsewhere rank 0; written by the heartbeat thread
  Clock::time_point store_responded_;  ///< last response
  std::string failure_;                ///< of this process
  std::optional<std::string> report_;
  std::optional<Clock::time_point> reported_;
  bool ending_ = false, ended_ = false, done_ = false;
  std::thread heartbeat_thread_, watchdog_thread_;
};

}  // namespace hero
