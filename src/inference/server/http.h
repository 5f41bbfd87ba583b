#pragma once
// HTTP/1.1 server on cpp-httplib, with limits on request sizes, connections and timeouts. Handlers run in a
// thread pool; an open connection occupies one thread. While all are occupied, one more thread answers the
// endpoints that are always available and rejects other requests.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "inference/server/api_error.h"

namespace hero {

struct HttpLimits {
  size_t max_body = 4 << 20;                ///< bytes
  size_t max_head = 64 << 10;               ///< bytes of request line and headers
  size_t threads = 64;                      ///< concurrent connections
  size_t overflow = 128;                    ///< connections besides those; the oldest are closed
  std::chrono::milliseconds read{30'000};   ///< timeout for receiving the headers, then each part of the body
  std::chrono::milliseconds write{10'000};  ///< timeout for sending each part of a response
  std::chrono::milliseconds idle{5'000};    ///< keep-alive timeout between two requests
  std::chrono::milliseconds discard{1000};  ///< timeout for reading the rest of a rejected body
};

struct HttpAccess {
  std::string api_key;             ///< "": none required
  std::vector<std::string> hosts;  ///< accepted in the Host header, besides loopback and the bound address
};

/// The client connection of a request.
class ClientConnection {
 public:
  virtual ~ClientConnection() = default;
  virtual bool disconnected() const = 0;
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string type = "application/json";
  std::map<std::string, std::string> headers;
  /// Writes the response in parts instead of `body`, with chunked encoding (HTTP/1.0: until the connection
  /// closes): calls `write` until it returns false or all data is sent. Returns whether the response is
  /// complete.
  std::function<bool(const std::function<bool(std::string_view)>& write)> stream;
  std::shared_ptr<void> held;  ///< destroyed when the response has been sent
};

/// Rejects requests with an unknown host in the Host header (DNS rebinding) with status 403, and requests of
/// web pages from other hosts, whose Origin header differs from the Host header.
class HttpServer {
 public:
  using Handler = std::function<HttpResponse(std::string body, const ClientConnection& client)>;
  /// Called for every response.
  using Observer = std::function<void(const std::string& endpoint, int status)>;

  struct Availability {
    bool open = false;    ///< no API key required
    bool always = false;  ///< also while all threads are occupied: the handler must return at once
  };

  HttpServer(const HttpLimits& limits, HttpAccess access, Observer observer);
  ~HttpServer();

  /// Adds an endpoint. Handlers throw ApiError; others become status 500.
  void get(const std::string& path, const Handler& handler, Availability availability);
  void get(const std::string& path, const Handler& handler) { get(path, handler, Availability()); }
  /// Adds a POST endpoint, whose handler receives the body whatever its Content-Type.
  void post(const std::string& path, const Handler& handler);

  /// Returns the port; 0 selects a free one. UserError if the port is in use or the host is not local.
  int bind(const std::string& host, int port);
  /// Serves until `drain`, then returns once all handlers have finished. RunError if accepting fails.
  void serve();
  /// Stops accepting connections, closes idle ones and rejects new requests with 503. Thread-safe.
  void drain();
  /// Makes all reads and writes on connections fail.
  void abort();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hero
