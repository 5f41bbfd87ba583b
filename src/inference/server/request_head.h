#pragma once
// Validates the request line and headers of a request before its body is read.
#include <cstddef>
#include <map>
#include <string>

#include "inference/server/api_error.h"
#include "inference/server/host_header.h"

namespace hero {

struct RequestHead {
  std::string method, path;
  std::multimap<std::string, std::string> headers;  ///< names in lower case

  /// The value of a header, the first of several; "" if absent.
  std::string header(const std::string& name) const;
};

/// HTTP/1.0 clients send no Host header, browsers always do. ApiError 403 for a host that is not allowed.
void check_host(const RequestHead& head, const AllowedHosts& hosts);

/// Browsers send a form or text of any web page without asking the server first (CORS), but with its origin.
/// ApiError 403 for an origin other than the Host header's.
void check_origin(const RequestHead& head);

/// ApiError 401 without "Authorization: Bearer `api_key`".
void check_api_key(const RequestHead& head, const std::string& api_key);

/// Checks the headers that describe the body. ApiError 400, 411, 413 or 415. `expected`: of a POST request.
void check_body_headers(const RequestHead& head, bool expected, size_t max_body);

/// ApiError 413.
ApiError body_too_long(size_t max_body);

}  // namespace hero
