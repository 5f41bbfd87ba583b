#include "inference/server/http.h"

#include <httplib.h>
#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <span>
#include <string_view>

#include "inference/server/constant_time.h"
#include "io/error.h"

// HttpServer::Impl overrides a private virtual function of httplib::Server and uses protected members. The
// interface has no limit on all headers together, no deadline for a whole request, and no way to close a
// connection that has an unread body or to abort all connections.
static_assert(std::string_view(CPPHTTPLIB_VERSION) == "0.11.4",
              "cpp-httplib: found version " CPPHTTPLIB_VERSION
              ", expected 0.11.4, for which src/inference/server/http.cpp was tested: compare "
              "process_and_close_socket, process_request and svr_sock_ of httplib::Server, make "
              "tests/python/inference/test_serve*.py pass, then change the version here");

namespace hero {
namespace {

using namespace std::chrono_literals;
using Deadline = std::chrono::steady_clock::time_point;

constexpr int kBacklog = 256;  // cpp-httplib's default is 5
// Limits for reading the rest of a rejected body, so that the client receives the response before the close.
constexpr size_t kMaxDiscardedBytes = 8 << 20;
constexpr auto kDiscardTimeout = 1000ms;

enum Phase { kServing, kDraining, kAborting };

Deadline deadline_after(std::chrono::milliseconds timeout) {
  return std::chrono::steady_clock::now() + timeout;
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response{.status = error.status, .body = error_json(error)};
  if (error.status == 401) response.headers.emplace("WWW-Authenticate", "Bearer");
  if (error.status == 503) response.headers.emplace("Retry-After", "1");
  return response;
}

// A socket as a cpp-httplib stream, with a byte budget per request and deadlines for all waits.
class Connection : public httplib::Stream, public ClientConnection {
 public:
  Connection(int socket, const HttpLimits& limits, const std::atomic<int>& phase)
      : socket_(socket), limits_(limits), phase_(phase) {}
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
    head_read = true;
  }

  bool is_readable() const override { return begin_ < end_ || poll_for(POLLIN, 0ms); }
  bool is_writable() const override { return poll_for(POLLOUT, 0ms) && !disconnected(); }
  bool disconnected() const override { return phase_ == kAborting || poll_for(POLLRDHUP, 0ms); }

  ssize_t read(char* out, size_t size) override {
    if (budget_ == 0) return -1;
    while (begin_ == end_) {
      if (phase_ == kAborting || std::chrono::steady_clock::now() >= deadline_) return -1;
      if (poll_for(POLLIN, 50ms) && !fill()) return 0;
    }
    const size_t count = std::min({size, end_ - begin_, budget_});
    std::copy_n(buffer_ + begin_, count, out);
    if (!head_read) remove_range_header({out, count});
    begin_ += count;
    budget_ -= count;
    return static_cast<ssize_t>(count);
  }

  ssize_t write(const char* data, size_t size) override {
    const auto deadline = deadline_after(limits_.write);
    size_t sent = 0;
    while (sent < size) {
      if (phase_ == kAborting || std::chrono::steady_clock::now() >= deadline) return -1;
      if (!poll_for(POLLOUT, 50ms)) continue;
      const ssize_t count = ::send(socket_, data + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count > 0) sent += static_cast<size_t>(count);
      if (count < 0 && errno != EAGAIN && errno != EINTR) return -1;
    }
    return static_cast<ssize_t>(size);
  }

  void get_remote_ip_and_port(std::string& ip, int& port) const override { ip.clear(), port = -1; }
  void get_local_ip_and_port(std::string& ip, int& port) const override { ip.clear(), port = -1; }
  socket_t socket() const override { return socket_; }

  bool over_budget() const { return budget_ == 0; }

  std::optional<HttpResponse> rejection;  // of the request, based on its headers
  bool head_read = false;
  bool has_unread_body = false;  // the connection cannot be reused for another request

 private:
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
    const auto deadline = deadline_after(kDiscardTimeout);
    while (count < kMaxDiscardedBytes && phase_ != kAborting && std::chrono::steady_clock::now() < deadline) {
      if (!poll_for(POLLIN, 50ms)) continue;
      if (!fill()) return;
      count += end_;
    }
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

thread_local Connection* current = nullptr;  // the connection served by this thread

// Whether `origin` is SCHEME://HOST[:PORT] with the host and port of the Host header `host`. The scheme may
// differ: a proxy may add TLS.
bool is_same_origin(std::string_view origin, std::string_view host) {
  const size_t separator = origin.find("://");
  return separator != origin.npos &&
         std::ranges::equal(origin.substr(separator + 3), host, [](unsigned char a, unsigned char b) {
           return std::tolower(a) == std::tolower(b);
         });
}

void set_response(HttpResponse source, httplib::Response& response) {
  response.status = source.status;
  for (const auto& [name, value] : source.headers) response.set_header(name, value);
  if (!source.stream) return response.set_content(source.body, source.type);
  response.set_chunked_content_provider(
      source.type, [stream = std::move(source.stream)](size_t, httplib::DataSink& sink) {
        const bool complete =
            stream([&](std::string_view chunk) { return sink.write(chunk.data(), chunk.size()); });
        if (complete) sink.done();
        return complete;
      });
}

}  // namespace

class HttpServer::Impl : public httplib::Server {
 public:
  Impl(const HttpLimits& limits, std::string key, Observer observer)
      : limits_(limits), key_(std::move(key)), observer_(std::move(observer)) {
    new_task_queue = [this] { return new httplib::ThreadPool(limits_.threads); };
    set_tcp_nodelay(true);
    // cpp-httplib's default, SO_REUSEPORT, would let two servers share a port by accident.
    set_socket_options([](socket_t socket) {
      const int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    set_pre_routing_handler([](const httplib::Request&, httplib::Response& response) {
      if (!current->rejection) return HandlerResponse::Unhandled;
      set_response(*current->rejection, response);
      return HandlerResponse::Handled;
    });
    set_error_handler([](const httplib::Request&, httplib::Response& response) {
      if (response.body.empty()) {
        set_response(error_response({response.status, "found an invalid HTTP request"}), response);
      }
    });
    set_exception_handler(
        [](const httplib::Request&, httplib::Response& response, const std::exception_ptr&) {
          set_response(error_response({500, "internal server error"}), response);
        });
    set_logger([this](const httplib::Request& request, const httplib::Response& response) {
      const bool known = endpoints_.contains(request.path);
      observer_(known ? request.path : "other", response.status);
    });
  }

  void add(const std::string& method, const std::string& path, const HttpServer::Handler& handler,
           bool open) {
    endpoints_[path] = {method, open};
    if (method == "GET") {
      Get(path, [handler](const httplib::Request&, httplib::Response& response) {
        set_response(call_handler(handler, ""), response);
      });
      return;
    }
    Post(path, [this, handler](const httplib::Request&, httplib::Response& response,
                               const httplib::ContentReader& reader) {
      std::string body;
      bool too_long = false;
      const bool complete = reader([&](const char* data, size_t size) {
        too_long = body.size() + size > limits_.max_body;
        if (!too_long) body.append(data, size);
        return !too_long;
      });
      if (complete) return set_response(call_handler(handler, body), response);
      current->has_unread_body = true;
      const bool limit_exceeded = too_long || current->over_budget();
      set_response(
          error_response(limit_exceeded ? body_too_long() : ApiError(400, "body: found an incomplete body")),
          response);
    });
  }

  int open(const std::string& host, int port) {
    if (port == 0) {
      port = bind_to_any_port(host);
    } else if (!bind_to_port(host, port)) {
      port = -1;
    }
    if (port > 0 && ::listen(svr_sock_, kBacklog) == 0) return port;
    throw UserError("--host " + host + " --port: cannot listen, expected a local address and a free port");
  }

  void stop_accepting() { ::shutdown(svr_sock_, SHUT_RDWR); }

  std::atomic<int> phase = kServing;

 private:
  struct Endpoint {
    std::string method;
    bool open;
  };

  ApiError body_too_long() const {
    return {413,
            "body: found more than " + std::to_string(limits_.max_body) + " bytes, expected at most that"};
  }

  static HttpResponse call_handler(const HttpServer::Handler& handler, const std::string& body) {
    try {
      return handler(body, *current);
    } catch (const ApiError& e) {
      return error_response(e);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "hero: serve: %s\n", e.what());
      return error_response({500, "internal server error"});
    }
  }

  // Browsers send a form or text of any web page without asking the server first (CORS), but with its origin.
  static void check_origin(const httplib::Request& request) {
    if (!request.has_header("Origin")) return;
    const std::string origin = request.get_header_value("Origin"), host = request.get_header_value("Host");
    if (is_same_origin(origin, host)) return;
    throw ApiError(403, "Origin: found " + origin + ", expected the Host header's host and port, " + host, "",
                   "cross_origin");
  }

  // Validates the headers of a request before its body is read.
  void check_head(const httplib::Request& request) const {
    check_origin(request);
    const auto found = endpoints_.find(request.path);
    const bool open = found != endpoints_.end() && found->second.open;
    if (!key_.empty() && !open) {
      const std::string given = request.get_header_value("Authorization");
      if (!given.starts_with("Bearer ") || !equal_in_constant_time(given.substr(7), key_)) {
        throw ApiError(401, "Authorization: found no valid key, expected \"Bearer KEY\"", "",
                       "invalid_api_key");
      }
    }
    if (found == endpoints_.end()) {
      throw ApiError(404, "found an unknown path, expected /v1/completions or another endpoint", "",
                     "unknown_url");
    }
    const std::string& method = found->second.method;
    const bool head = request.method == "HEAD" && method == "GET";
    if (request.method != method && !head) {
      throw ApiError(405, "found " + request.method + ", expected " + method, "", "method_not_allowed");
    }
    if (phase != kServing) throw ApiError(503, "the server is shutting down", "", "stopping");
    check_body(request, method == "POST");
  }

  void check_body(const httplib::Request& request, bool expected) const {
    const std::string length = request.get_header_value("Content-Length");
    const bool chunked = request.has_header("Transfer-Encoding");
    if (request.get_header_value_count("Content-Length") + chunked > 1 || length.size() > 18 ||
        length.find_first_not_of("0123456789") != length.npos) {
      throw ApiError(400, "Content-Length: found an invalid or repeated header, expected one number");
    }
    if (!expected) {
      if (chunked || length.find_first_not_of('0') != length.npos) {
        throw ApiError(400, "body: found a body, expected none with GET");
      }
      return;
    }
    if (!chunked && length.empty())
      throw ApiError(411, "Content-Length: found none, expected the length of the body");
    if (chunked && request.get_header_value("Transfer-Encoding") != "chunked") {
      throw ApiError(400, "Transfer-Encoding: found another encoding, expected chunked");
    }
    if (!length.empty() && std::stoull(length) > limits_.max_body) throw body_too_long();
    const std::string encoding = request.get_header_value("Content-Encoding");
    if (!encoding.empty() && encoding != "identity")
      throw ApiError(415, "Content-Encoding: found " + encoding + ", expected none");
  }

  void prepare(httplib::Request& request, Connection& connection) const {
    connection.begin_body();
    request.headers.erase("Accept-Encoding");  // responses are not compressed
    request.headers.erase("Content-Type");     // cpp-httplib would parse multipart bodies itself
    try {
      check_head(request);
    } catch (const ApiError& e) {
      connection.rejection = error_response(e);
      connection.has_unread_body = true;
      request.headers.erase("Connection");
      request.headers.emplace("Connection", "close");
    }
  }

  bool process_and_close_socket(socket_t socket) override {
    Connection connection(socket, limits_, phase);
    current = &connection;
    try {
      while (!connection.has_unread_body && connection.wait_for_request()) {
        connection.begin_request();
        bool closed = false;
        const bool good = process_request(connection, false, closed,
                                          [&](httplib::Request& request) { prepare(request, connection); });
        if (!connection.head_read && connection.over_budget()) {
          connection.has_unread_body = true;
          if (!good) reject_head(connection);  // otherwise cpp-httplib has responded
        }
        if (!good || closed || !connection.head_read) break;
      }
    } catch (const std::exception& e) {
      std::fprintf(stderr, "hero: serve: connection failed: %s\n", e.what());
    }
    current = nullptr;
    return true;
  }

  void reject_head(Connection& connection) const {
    const std::string body =
        error_json({431, "found more than " + std::to_string(limits_.max_head) + " bytes of headers"});
    connection.write_format(
        "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: application/json\r\n"
        "Content-Length: %zu\r\nConnection: close\r\n\r\n%s",
        body.size(), body.c_str());
    observer_("other", 431);
  }

  const HttpLimits limits_;
  const std::string key_;
  const Observer observer_;
  std::map<std::string, Endpoint> endpoints_;
};

HttpServer::HttpServer(const HttpLimits& limits, std::string api_key, Observer observer)
    : impl_(std::make_unique<Impl>(limits, std::move(api_key), std::move(observer))) {}

HttpServer::~HttpServer() = default;

void HttpServer::get(const std::string& path, const Handler& handler, bool open) {
  impl_->add("GET", path, handler, open);
}

void HttpServer::post(const std::string& path, const Handler& handler) {
  impl_->add("POST", path, handler, /*open=*/false);
}

int HttpServer::bind(const std::string& host, int port) { return impl_->open(host, port); }

void HttpServer::serve() {
  impl_->listen_after_bind();
  if (impl_->phase == kServing) throw RunError("serve: accepting connections failed");
}

void HttpServer::drain() {
  impl_->phase = kDraining;
  impl_->stop_accepting();
}

void HttpServer::abort() { impl_->phase = kAborting; }

}  // namespace hero
