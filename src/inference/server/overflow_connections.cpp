#include "inference/server/overflow_connections.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

namespace hero {
namespace {

constexpr std::chrono::milliseconds kScanInterval{10};
// For the client to receive a response before the close, although it may still send a body.
constexpr std::chrono::milliseconds kLinger{1000};

// kNone: the client has closed the connection, or sent more than a request to an endpoint that is always
// available needs.
enum class ReceivedHeaders { kIncomplete, kComplete, kNone };

bool would_block() { return errno == EAGAIN || errno == EINTR; }

// Looks at the received bytes without consuming them.
ReceivedHeaders received_headers(int socket) {
  char bytes[16 << 10];
  const ssize_t count = ::recv(socket, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
  if (count < 0 && would_block()) return ReceivedHeaders::kIncomplete;
  if (count <= 0) return ReceivedHeaders::kNone;
  const std::string_view text(bytes, static_cast<size_t>(count));
  if (text.find("\r\n\r\n") != text.npos) return ReceivedHeaders::kComplete;
  return text.size() == sizeof bytes ? ReceivedHeaders::kNone : ReceivedHeaders::kIncomplete;
}

// Returns whether the connection is still open.
bool discard_received(int socket) {
  char bytes[16 << 10];
  const ssize_t count = ::recv(socket, bytes, sizeof bytes, MSG_DONTWAIT);
  return count > 0 || (count < 0 && would_block());
}

}  // namespace

OverflowConnections::OverflowConnections(size_t max, std::chrono::milliseconds timeout,
                                         std::function<void(int)> serve)
    : max_(max), timeout_(timeout), serve_(std::move(serve)), thread_([this] { run(); }) {}

OverflowConnections::~OverflowConnections() {
  stop();
  for (const auto& connection : waiting_) ::close(connection.socket);
}

void OverflowConnections::add(int socket) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back({socket, std::chrono::steady_clock::now() + timeout_});
  changed_.notify_one();
}

void OverflowConnections::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void OverflowConnections::run() {
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
bool OverflowConnections::finish(Waiting& connection) const {
  const auto now = std::chrono::steady_clock::now();
  const bool open =
      connection.answered ? discard_received(connection.socket) : serve_if_ready(connection, now);
  if (open && now < connection.deadline) return false;
  ::close(connection.socket);
  return true;
}

// Returns whether the connection is still open.
bool OverflowConnections::serve_if_ready(Waiting& connection,
                                         std::chrono::steady_clock::time_point now) const {
  const auto headers = received_headers(connection.socket);
  if (headers != ReceivedHeaders::kComplete) return headers == ReceivedHeaders::kIncomplete;
  const int socket = std::exchange(connection.socket, ::dup(connection.socket));
  serve_(socket);
  connection.answered = true;
  connection.deadline = now + kLinger;
  return connection.socket >= 0;
}

}  // namespace hero
