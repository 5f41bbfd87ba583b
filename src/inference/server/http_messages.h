#pragma once
// Requests and responses of cpp-httplib. Included by http.cpp only, which has its compile options.
#include <httplib.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <utility>

#include "inference/server/api_json.h"
#include "inference/server/connection.h"
#include "inference/server/http.h"
#include "inference/server/request_head.h"

namespace hero {

/// Free memory is returned to the system after a body of this many bytes, and after this many requests: glibc
/// would keep it (docs/decisions.md).
constexpr size_t kLargeBody = 1 << 20;
constexpr uint64_t kRequestsPerTrim = 256;

inline RequestHead head_of(const httplib::Request& request) {
  RequestHead head{.method = request.method, .path = request.path};
  for (const auto& [name, value] : request.headers) {
    std::string lower = name;
    std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
    head.headers.emplace(std::move(lower), value);
  }
  return head;
}

/// The connection closes after the response to `request`.
inline void close_after(httplib::Request& request) {
  request.headers.erase("Connection");
  request.headers.emplace("Connection", "close");
}

inline HttpResponse error_response(const ApiError& error) {
  HttpResponse response{.status = error.status, .body = error_json(error)};
  if (error.status == 401) response.headers.emplace("WWW-Authenticate", "Bearer");
  if (error.status == 503) response.headers.emplace("Retry-After", "1");
  return response;
}

/// The connection holds source.held until the response has been sent, and must outlive that.
inline void set_response(HttpResponse source, Connection& connection, httplib::Response& response) {
  response.status = source.status;
  for (const auto& [name, value] : source.headers) response.set_header(name, value);
  connection.held = std::move(source.held);
  if (!source.stream) {  // set_content would copy the body
    response.headers.erase("Content-Type");
    response.set_header("Content-Type", source.type);
    response.body = std::move(source.body);
    connection.large |= response.body.size() >= kLargeBody;
    return;
  }
  auto send = [stream = std::move(source.stream), &connection](size_t, httplib::DataSink& sink) {
    size_t sent = 0;
    const bool complete = stream([&](std::string_view part) {
      sent += part.size();
      return sink.write(part.data(), part.size());
    });
    connection.large |= sent >= kLargeBody;
    if (complete) sink.done();
    return complete;
  };
  if (connection.chunked_responses) {
    response.set_chunked_content_provider(source.type, std::move(send));
  } else {
    response.set_content_provider(source.type, std::move(send));
  }
}

}  // namespace hero
