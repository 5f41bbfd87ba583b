#pragma once
// Connections for which there is no thread.
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace hero {

/// One thread serves each connection as soon as the headers of its request have arrived, so that a slow
/// client does not delay others.
class OverflowConnections {
 public:
  /// Closes connections that wait for longer than `timeout`, and the oldest if there are more than `max`.
  /// `serve` closes its socket.
  OverflowConnections(size_t max, std::chrono::milliseconds timeout, std::function<void(int)> serve);
  ~OverflowConnections();

  void add(int socket);
  /// Returns once `serve` does not run and will not be called again.
  void stop();

 private:
  struct Waiting {
    int socket;
    std::chrono::steady_clock::time_point deadline;
    bool answered = false;
  };

  void run();
  bool finish(Waiting& connection) const;
  bool serve_if_ready(Waiting& connection, std::chrono::steady_clock::time_point now) const;

  const size_t max_;
  const std::chrono::milliseconds timeout_;
  const std::function<void(int)> serve_;
  std::mutex mutex_;              // guards the next two
  std::vector<Waiting> waiting_;  // by arrival
  bool stopped_ = false;
  std::condition_variable changed_;
  std::thread thread_;
};

}  // namespace hero
