#pragma once
// Which thread serves a connection. Included by http.cpp only, which has the compile options of cpp-httplib.
#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace hero {

/// A thread pool. While all threads are busy, it runs a connection's task on the accepting thread, where
/// `overflowing` is true: the task must not wait.
class ConnectionThreads : public httplib::TaskQueue {
 public:
  explicit ConnectionThreads(size_t threads) : threads_(threads), pool_(threads) {}

  static bool overflowing() { return overflowing_; }

  void enqueue(std::function<void()> serve) override {
    if (busy_ >= threads_) {
      overflowing_ = true;
      serve();
      overflowing_ = false;
      return;
    }
    ++busy_;
    pool_.enqueue([this, serve = std::move(serve)] {
      serve();
      --busy_;
    });
  }
  void shutdown() override { pool_.shutdown(); }

 private:
  static inline thread_local bool overflowing_ = false;

  const size_t threads_;
  std::atomic<size_t> busy_ = 0;
  httplib::ThreadPool pool_;
};

/// Connections for which there is no thread. One thread serves each as soon as the headers of its request
/// have arrived, so that a slow client does not delay others.
class OverflowConnections {
 public:
  /// Closes connections that wait for longer than `timeout`, and the oldest if there are more than `max`.
  /// `serve` closes its socket.
  OverflowConnections(size_t max, std::chrono::milliseconds timeout, std::function<void(int)> serve)
      : max_(max), timeout_(timeout), serve_(std::move(serve)), thread_([this] { run(); }) {}
  ~OverflowConnections() {
    stop();
    for (const auto& connection : waiting_) ::close(connection.socket);
  }

  void add(int socket) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back({socket, std::chrono::steady_clock::now() + timeout_});
    changed_.notify_one();
  }
  /// Returns once `serve` does not run and will not be called again.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
      changed_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  static constexpr std::chrono::milliseconds kScanInterval{10};
  // For the client to receive a response before the close, although it may still send a body.
  static constexpr std::chrono::milliseconds kLinger{1000};
  struct Waiting {
    int socket;
    std::chrono::steady_clock::time_point deadline;
    bool answered = false;
  };
  enum class Headers { kIncomplete, kComplete, kNone };

  // Looks at the received bytes without consuming them. kNone: the client has closed the connection, or sent
  // more than a request to an endpoint that is always available needs.
  static Headers received_headers(int socket) {
    char bytes[16 << 10];
    const ssize_t count = ::recv(socket, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return Headers::kIncomplete;
    if (count <= 0) return Headers::kNone;
    const std::string_view text(bytes, static_cast<size_t>(count));
    if (text.find("\r\n\r\n") != text.npos) return Headers::kComplete;
    return text.size() == sizeof bytes ? Headers::kNone : Headers::kIncomplete;
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopped_ || !waiting_.empty(); });
      if (stopped_) return;
      auto scanned = std::exchange(waiting_, {});
      lock.unlock();
      std::vector<Waiting> kept;
      for (auto& connection : scanned) {
        if (!finish(connection)) kept.push_back(connection);
      }
      lock.lock();
      waiting_.insert(waiting_.begin(), kept.begin(), kept.end());
      const size_t excess = waiting_.size() - std::min(waiting_.size(), max_);
      for (size_t i = 0; i < excess; ++i) ::close(waiting_[i].socket);
      waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(excess));
      if (!waiting_.empty()) changed_.wait_for(lock, kScanInterval, [this] { return stopped_; });
    }
  }

  // Serves or closes a connection; returns false if it must wait.
  bool finish(Waiting& connection) const {
    const auto now = std::chrono::steady_clock::now();
    const bool open =
        connection.answered ? discard_input(connection.socket) : serve_if_ready(connection, now);
    if (open && now < connection.deadline) return false;
    ::close(connection.socket);
    return true;
  }

  // Both return whether the connection is still open.
  bool serve_if_ready(Waiting& connection, std::chrono::steady_clock::time_point now) const {
    const Headers headers = received_headers(connection.socket);
    if (headers != Headers::kComplete) return headers == Headers::kIncomplete;
    const int socket = std::exchange(connection.socket, ::dup(connection.socket));
    serve_(socket);
    connection.answered = true;
    connection.deadline = now + kLinger;
    return connection.socket >= 0;
  }
  static bool discard_input(int socket) {
    char bytes[16 << 10];
    const ssize_t count = ::recv(socket, bytes, sizeof bytes, MSG_DONTWAIT);
    return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
  }

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
