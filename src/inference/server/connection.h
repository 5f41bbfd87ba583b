#pragma once
// A client connection of the server. Included by http.cpp only, which has the compile options of cpp-httplib.
#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "inference/server/http.h"

namespace hero {

using namespace std::chrono_literals;
using Deadline = std::chrono::steady_clock::time_point;

enum ServerPhase { kServing, kDraining, kAborting };

inline Deadline deadline_after(std::chrono::milliseconds timeout) {
  return std::chrono::steady_clock::now() + timeout;
}

// A socket as a cpp-httplib stream, with a byte budget per request and deadlines for all waits: for the
// headers of a request as a whole, then for every part of its body and of the response.
class Connection : public httplib::Stream, public ClientConnection {
 public:
  /// `overflow`: all threads of HttpLimits are in use. The limits must outlive the object.
  Connection(int socket, const HttpLimits& limits, const std::atomic<int>& phase, bool overflow)
      : overflow(overflow), socket_(socket), limits_(limits), phase_(phase) {}
  ~Connection() override {
    ::shutdown(socket_, SHUT_WR);
    if (has_unread_body) discard_input();
    ::close(socket_);
  }

  // Returns whether another request has arrived.
  bool wait_for_request() {
    if (begin_ < end_) return true;
    const auto deadline = deadline_after(limits_.idle);
    while (phase_ == kServing && std::chrono::steady_clock::now() < deadline) {
      if (poll_for(POLLIN, 50ms)) return fill();
    }
    return false;
  }
  void begin_request() {
    budget_ = limits_.max_head;
    deadline_ = deadline_after(limits_.read);
    rejection.reset();
    head_read = false;
    line_.clear();
  }
  // The budget includes the headers of chunked encoding.
  void begin_body() {
    budget_ = limits_.max_head + 8 * limits_.max_body;
    deadline_ = deadline_after(limits_.read);
    head_read = true;
  }

  bool is_readable() const override { return begin_ < end_ || poll_for(POLLIN, 0ms); }
  // cpp-httplib asks before the parts of a response, for which `write` waits.
  bool is_writable() const override { return phase_ != kAborting; }
  bool disconnected() const override { return phase_ == kAborting || poll_for(POLLRDHUP, 0ms); }

  ssize_t read(char* out, size_t size) override {
    if (budget_ == 0) return -1;
    while (begin_ == end_) {
      if (phase_ == kAborting || std::chrono::steady_clock::now() >= deadline_) return -1;
      if (!poll_for(POLLIN, 50ms)) continue;
      if (!fill()) return 0;
      if (head_read) deadline_ = deadline_after(limits_.read);
    }
    const size_t count = std::min({size, end_ - begin_, budget_});
    std::copy_n(buffer_ + begin_, count, out);
    if (!head_read) remove_range_header({out, count});
    begin_ += count;
    budget_ -= count;
    return static_cast<ssize_t>(count);
  }

  ssize_t write(const char* data, size_t size) override {
    auto deadline = deadline_after(limits_.write);
    size_t sent = 0;
    while (sent < size) {
      if (phase_ == kAborting || std::chrono::steady_clock::now() >= deadline) return -1;
      if (!poll_for(POLLOUT, 50ms)) continue;
      const ssize_t count = ::send(socket_, data + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count > 0) {
        sent += static_cast<size_t>(count);
        deadline = deadline_after(limits_.write);
      }
      if (count < 0 && errno != EAGAIN && errno != EINTR) return -1;
    }
    return static_cast<ssize_t>(size);
  }

  void get_remote_ip_and_port(std::string& ip, int& port) const override { ip.clear(), port = -1; }
  void get_local_ip_and_port(std::string& ip, int& port) const override { ip.clear(), port = -1; }
  socket_t socket() const override { return socket_; }

  bool over_budget() const { return budget_ == 0; }

  const bool overflow;
  std::optional<HttpResponse> rejection;  // of the request, based on its headers
  std::shared_ptr<void> held;             // released when the response has been sent
  bool large = false;                     // the body of the request or response
  bool chunked_responses = true;          // false for HTTP/1.0, which has no chunked encoding
  bool head_read = false;
  bool has_unread_body = false;  // the connection cannot be reused for another request

 private:
  // Of the rest of a rejected body, which is read so that the client receives the response before the close.
  static constexpr size_t kMaxDiscardedBytes = 8 << 20;

  bool poll_for(short events, std::chrono::milliseconds time) const {
    pollfd entry{socket_, events, 0};
    return ::poll(&entry, 1, static_cast<int>(time.count())) > 0;
  }
  // cpp-httplib parses Range with a regular expression, which needs megabytes of stack for long headers.
  // Removing the colon invalidates the header.
  void remove_range_header(std::span<char> bytes) {
    for (char& c : bytes) {
      if (c == '\n') {
        line_.clear();
      } else if (c == ':' && line_ == "range") {
        c = ' ';
      } else if (line_.size() < 6) {
        line_ += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      }
    }
  }
  bool fill() {
    const ssize_t count = ::recv(socket_, buffer_, sizeof buffer_, 0);
    begin_ = 0;
    end_ = count > 0 ? static_cast<size_t>(count) : 0;
    return count > 0;
  }
  void discard_input() {
    size_t count = 0;
    const auto deadline = deadline_after(limits_.discard);
    do {
      if (!poll_for(POLLIN, std::min(limits_.discard, 50ms))) continue;
      if (!fill()) return;
      count += end_;
    } while (count < kMaxDiscardedBytes && phase_ != kAborting &&
             std::chrono::steady_clock::now() < deadline);
  }

  const int socket_;
  const HttpLimits& limits_;
  const std::atomic<int>& phase_;
  size_t budget_ = 0;  // bytes that may still be read for this request
  Deadline deadline_;
  std::string line_;  // beginning of the current header line, in lower case
  size_t begin_ = 0, end_ = 0;
  char buffer_[16 << 10];
};

}  // namespace hero
