#include "inference/server/http.h"

#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <utility>

#include "inference/server/connection.h"
#include "inference/server/connection_threads.h"
#include "inference/server/http_messages.h"
#include "inference/server/overflow_connections.h"
#include "inference/server/request_head.h"
#include "io/error.h"

// HttpServer::Impl overrides a private virtual function of httplib::Server and uses protected members. The
// interface has no limit on all headers together, no deadline for them, and no way to close a connection that
// has an unread body or to abort all connections.
static_assert(std::string_view(CPPHTTPLIB_VERSION) == "0.11.4",
              "cpp-httplib: found version " CPPHTTPLIB_VERSION
              ", expected 0.11.4, for which src/inference/server/http.cpp was tested: compare "
              "process_and_close_socket, process_request and svr_sock_ of httplib::Server, make "
              "tests/python/inference/test_serve*.py pass, then change the version here");

namespace hero {
namespace {

// Of a connection without a thread: its request has arrived, and the response fits into the send buffer.
constexpr auto kOverflowTimeout = 100ms;
constexpr int kBacklog = 256;  // cpp-httplib's default is 5

thread_local Connection* current = nullptr;  // the connection served by this thread

}  // namespace

class HttpServer::Impl : public httplib::Server {
 public:
  Impl(const HttpLimits& limits, HttpAccess access, Observer observer)
      : limits_(limits),
        access_(std::move(access)),
        observer_(std::move(observer)),
        overflow_(limits.overflow, limits.read,
                  [this](int socket) { serve_connection(socket, overflow_limits_, /*overflow=*/true); }) {
    overflow_limits_.read = overflow_limits_.write = kOverflowTimeout;
    overflow_limits_.discard = 0ms;
    new_task_queue = [this] { return new ConnectionThreads(limits_.threads); };
    set_tcp_nodelay(true);
    // cpp-httplib's default, SO_REUSEPORT, would let two servers share a port by accident.
    set_socket_options([](socket_t socket) {
      const int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    set_pre_routing_handler([](const httplib::Request&, httplib::Response& response) {
      if (!current->rejection) return HandlerResponse::Unhandled;
      set_response(*current->rejection, *current, response);
      return HandlerResponse::Handled;
    });
    set_error_handler([](const httplib::Request&, httplib::Response& response) {
      if (response.body.empty()) {
        set_response(error_response({response.status, "found an invalid HTTP request"}), *current, response);
      }
    });
    set_exception_handler(
        [](const httplib::Request&, httplib::Response& response, const std::exception_ptr&) {
          set_response(error_response({500, "internal server error"}), *current, response);
        });
    set_logger([this](const httplib::Request& request, const httplib::Response& response) {
      const bool known = endpoints_.contains(request.path);
      observer_(known ? request.path : "other", response.status);
    });
  }

  void add(const std::string& method, const std::string& path, const HttpServer::Handler& handler,
           HttpServer::Availability availability) {
    endpoints_[path] = {method, availability};
    if (method == "GET") {
      Get(path, [handler](const httplib::Request&, httplib::Response& response) {
        respond(response, [&] { return handler("", *current); });
      });
      return;
    }
    Post(path, [this, handler](const httplib::Request& request, httplib::Response& response,
                               const httplib::ContentReader& reader) {
      const auto length = request.get_header_value<uint64_t>("Content-Length");
      respond(response, [&] { return handler(read_body(reader, length), *current); });
    });
  }

  int open(const std::string& host, int port) {
    if (port == 0) {
      port = bind_to_any_port(host);
    } else if (!bind_to_port(host, port)) {
      port = -1;
    }
    hosts_ = AllowedHosts(host, access_.hosts);
    if (port > 0 && ::listen(svr_sock_, kBacklog) == 0) return port;
    throw UserError("--host " + host + " --port: cannot listen, expected a local address and a free port");
  }

  void stop_overflow() { overflow_.stop(); }

  void stop_accepting() { ::shutdown(svr_sock_, SHUT_RDWR); }

  std::atomic<int> phase = kServing;

 private:
  struct Endpoint {
    std::string method;
    HttpServer::Availability availability;
  };

  // `length`: that of the Content-Length header, 0 without one.
  std::string read_body(const httplib::ContentReader& reader, uint64_t length) const {
    std::string body;
    body.reserve(
        std::min<uint64_t>(length, limits_.max_body));  // a growing string needs up to 3 times its size
    bool too_long = false;
    const bool complete = reader([&](const char* data, size_t size) {
      too_long = body.size() + size > limits_.max_body;
      if (!too_long) body.append(data, size);
      return !too_long;
    });
    current->large |= body.size() >= kLargeBody;
    if (complete) return body;
    current->has_unread_body = true;
    if (too_long || current->over_budget()) throw body_too_long(limits_.max_body);
    throw ApiError(400, "body: found an incomplete body");
  }

  static void respond(httplib::Response& response, const std::function<HttpResponse()>& handle) {
    HttpResponse found;
    try {
      found = handle();
    } catch (const ApiError& e) {
      found = error_response(e);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "hero: serve: %s\n", e.what());
      found = error_response({500, "internal server error"});
    }
    set_response(std::move(found), *current, response);
  }

  // Validates the headers of a request before its body is read.
  void check_head(const RequestHead& head) const {
    check_host(head, hosts_);
    check_origin(head);
    const auto found = endpoints_.find(head.path);
    const auto availability = found == endpoints_.end() ? Availability() : found->second.availability;
    if (!access_.api_key.empty() && !availability.open) check_api_key(head, access_.api_key);
    if (found == endpoints_.end()) {
      throw ApiError(404, "found an unknown path, expected /v1/completions or another endpoint", "",
                     "unknown_url");
    }
    const std::string& method = found->second.method;
    if (head.method != method && !(head.method == "HEAD" && method == "GET")) {
      throw ApiError(405, "found " + head.method + ", expected " + method, "", "method_not_allowed");
    }
    if (phase != kServing) throw ApiError(503, "the server is shutting down", "", "stopping");
    if (current->overflow && !availability.always) throw too_many_connections();
    check_body_headers(head, method == "POST", limits_.max_body);
  }

  ApiError too_many_connections() const {
    return {503,
            "found " + std::to_string(limits_.threads) +
                " open connections, expected fewer: try again later (--max-batch and --max-queue determine "
                "their number)",
            "", "too_many_connections"};
  }

  void prepare(httplib::Request& request, Connection& connection) const {
    connection.begin_body();
    request.headers.erase("Accept-Encoding");  // responses are not compressed
    request.headers.erase("Content-Type");     // cpp-httplib would parse multipart bodies itself
    connection.chunked_responses = request.version != "HTTP/1.0";
    if (!connection.chunked_responses) close_after(request);  // that ends the response
    try {
      check_head(head_of(request));
    } catch (const ApiError& e) {
      connection.rejection = error_response(e);
      connection.has_unread_body = true;
      close_after(request);
    }
  }

  bool process_and_close_socket(socket_t socket) override {
    if (ConnectionThreads::overflowing()) {
      overflow_.add(socket);
    } else {
      serve_connection(socket, limits_, /*overflow=*/false);
    }
    return true;
  }

  void serve_connection(int socket, const HttpLimits& limits, bool overflow) {
    Connection connection(socket, limits, phase, overflow);
    current = &connection;
    try {
      while (!connection.has_unread_body && connection.wait_for_request()) {
        connection.begin_request();
        bool closed = false;
        const bool good = process_request(connection, /*close_connection=*/overflow, closed,
                                          [&](httplib::Request& request) { prepare(request, connection); });
        connection.held.reset();
        const bool trim = ++requests_ % kRequestsPerTrim == 0;
        if (std::exchange(connection.large, false) || trim) ::malloc_trim(0);
        if (!connection.head_read && connection.over_budget()) {
          connection.has_unread_body = true;
          if (!good) reject_head(connection);  // otherwise cpp-httplib has responded
        }
        if (!good || closed || overflow || !connection.head_read) break;
      }
    } catch (const std::exception& e) {
      std::fprintf(stderr, "hero: serve: connection failed: %s\n", e.what());
    }
    current = nullptr;
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
  HttpLimits overflow_limits_ = limits_;
  const HttpAccess access_;
  const Observer observer_;
  std::map<std::string, Endpoint> endpoints_;
  AllowedHosts hosts_{"localhost", access_.hosts};  // open adds the address
  OverflowConnections overflow_;
  std::atomic<uint64_t> requests_ = 0;
};

HttpServer::HttpServer(const HttpLimits& limits, HttpAccess access, Observer observer)
    : impl_(std::make_unique<Impl>(limits, std::move(access), std::move(observer))) {}

HttpServer::~HttpServer() = default;

void HttpServer::get(const std::string& path, const Handler& handler, Availability availability) {
  impl_->add("GET", path, handler, availability);
}

void HttpServer::post(const std::string& path, const Handler& handler) {
  impl_->add("POST", path, handler, {});
}

int HttpServer::bind(const std::string& host, int port) { return impl_->open(host, port); }

void HttpServer::serve() {
  impl_->listen_after_bind();
  impl_->stop_overflow();
  if (impl_->phase == kServing) throw RunError("serve: accepting connections failed");
}

void HttpServer::drain() {
  impl_->phase = kDraining;
  impl_->stop_accepting();
}

void HttpServer::abort() { impl_->phase = kAborting; }

}  // namespace hero
