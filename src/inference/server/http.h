#pragma once
// HTTP/1.1 over cpp-httplib, with bounds on what a client may send, hold and keep waiting. Handlers run in a
// fixed number of threads; a connection has one of them as long as it is open.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "inference/server/api_error.h"

namespace hero {

struct HttpLimits {
  size_t max_body = 4 << 20;                ///< bytes
  size_t max_head = 64 << 10;               ///< bytes of request line and headers
  size_t threads = 64;                      ///< connections served at a time; others wait
  std::chrono::milliseconds read{30'000};   ///< a whole request must arrive in it
  std::chrono::milliseconds write{10'000};  ///< for a piece of an answer
  std::chrono::milliseconds idle{5'000};    ///< between two requests of a connection
};

/// The client at the other end of the request that a handler works on.
class HttpClient {
 public:
  virtual ~HttpClient() = default;
  virtual bool gone() const = 0;
};

struct HttpReply {
  int status = 200;
  std::string body;
  std::string type = "application/json";
  std::map<std::string, std::string> headers;
  /// Writes an answer piece by piece (chunked) instead of `body`: it calls `write` until that returns false
  /// or everything is written. What it returns says whether the answer is complete.
  std::function<bool(const std::function<bool(std::string_view)>& write)> stream;
};

class HttpServer {
 public:
  using Handler = std::function<HttpReply(const std::string& body, const HttpClient& client)>;
  /// Called for every answer.
  using Observer = std::function<void(const std::string& endpoint, int status)>;

  HttpServer(const HttpLimits& limits, std::string api_key, Observer observer);
  ~HttpServer();

  /// Adds an endpoint; an `open` one asks for no key. Errors of handlers are ApiError; others are status 500.
  void get(const std::string& path, const Handler& handler, bool open = false);
  /// The same for POST; the body is JSON (Content-Type: application/json).
  void post(const std::string& path, const Handler& handler);

  /// Returns the port; 0 asks for any. UserError where it is taken or the host is not of this machine.
  int bind(const std::string& host, int port);
  /// Serves until `drain`, then returns as soon as no handler runs. RunError where accepting fails.
  void serve();
  /// No new connections; idle ones are closed, new requests refused with 503. From any thread.
  void drain();
  /// Now reading and writing fail, too.
  void abort();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hero
