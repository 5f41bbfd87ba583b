#pragma once
// Signs of life. Every process writes one to the store now and then; rank 0 reads all of them, everybody
// reads rank 0's. Whoever fails says so there, rank 0 adds which ranks are silent and where they were, and
// all end with that text, also those whose main thread hangs in an operation that nobody will complete.
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "distributed/launch.h"
#include "distributed/sign.h"

namespace hero {

class Heartbeat {
 public:
  /// `words`: a store that nobody waits in. A rank or a store silent for `timeout` seconds ends this process.
  Heartbeat(c10::intrusive_ptr<c10d::Store> words, const Launch& launch, double timeout);
  /// As end().
  ~Heartbeat();

  /// Tells all that this process has failed, and ends them. Returns `failure` and what is known of the
  /// others, after a few signs' time. This process is to end too; it is ended where it has not two seconds
  /// later.
  std::string explain(const std::string& failure);

  /// This process ends in order. Where it serves the store, it waits here until all have ended.
  void end();

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    Sign sign;
    Clock::time_point heard;
  };

  // Of the beating thread.
  void beat();
  bool exchange();
  void read_signs();
  void judge();
  std::string missing() const;
  void take_leave();
  void give_up();

  void watch();
  [[noreturn]] void leave(const std::string& text) const;
  double silence(int64_t rank) const;
  bool all_heard() const;
  bool all_ended() const;
  std::string name(int64_t rank) const;
  std::string without_store(const std::string& how) const;

  const c10::intrusive_ptr<c10d::Store> words_;
  const Launch launch_;
  const double timeout_, interval_, patience_;  ///< seconds; after `patience_` a rank counts as silent
  const bool serves_;
  const std::string self_;  ///< "rank 2 (host a, pid 5)"

  // Of the beating thread.
  int64_t number_ = 0;   ///< of the last sign
  std::string verdict_;  ///< that ends all; empty: none
  std::optional<Clock::time_point> failure_heard_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Peer> peers_;     ///< rank 0 hears all, the others rank 0; written by the beating thread
  Clock::time_point answered_;  ///< when the store did last
  std::string failure_;         ///< of this process
  std::optional<std::string> explanation_;
  std::optional<Clock::time_point> explained_;
  bool ending_ = false, ended_ = false, done_ = false;
  std::thread beating_, watching_;
};

}  // namespace hero
