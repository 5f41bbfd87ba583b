#include "inference/server/request_head.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "inference/server/constant_time.h"

namespace hero {
namespace {

// Whether `origin` is SCHEME://HOST[:PORT] with the host and port of the Host header `host`. The scheme may
// differ: a proxy may add TLS.
bool is_same_origin(std::string_view origin, std::string_view host) {
  const size_t separator = origin.find("://");
  return separator != origin.npos &&
         std::ranges::equal(origin.substr(separator + 3), host, [](unsigned char a, unsigned char b) {
           return std::tolower(a) == std::tolower(b);
         });
}

}  // namespace

std::string RequestHead::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

void check_host(const RequestHead& head, const AllowedHosts& hosts) {
  if (!head.headers.contains("host")) return;
  if (head.headers.count("host") > 1) {
    throw ApiError(400, "Host: found a repeated header, expected one host");
  }
  const std::string host = head.header("host");
  if (hosts.contains(host)) return;
  throw ApiError(403,
                 "Host: found " + host +
                     ", expected a loopback address, the address of --host or a name given with --allow-host",
                 "", "unknown_host");
}

void check_origin(const RequestHead& head) {
  if (!head.headers.contains("origin")) return;
  const std::string origin = head.header("origin"), host = head.header("host");
  if (is_same_origin(origin, host)) return;
  throw ApiError(403, "Origin: found " + origin + ", expected the Host header's host and port, " + host, "",
                 "cross_origin");
}

void check_api_key(const RequestHead& head, const std::string& api_key) {
  const std::string given = head.header("authorization");
  if (given.starts_with("Bearer ") && equal_in_constant_time(given.substr(7), api_key)) return;
  throw ApiError(401, "Authorization: found no valid key, expected \"Bearer KEY\"", "", "invalid_api_key");
}

void check_body_headers(const RequestHead& head, bool expected, size_t max_body) {
  const std::string length = head.header("content-length");
  const bool chunked = head.headers.contains("transfer-encoding");
  if (head.headers.count("content-length") + chunked > 1 || length.size() > 18 ||
      length.find_first_not_of("0123456789") != length.npos) {
    throw ApiError(400, "Content-Length: found an invalid or repeated header, expected one number");
  }
  if (!expected) {
    if (!chunked && length.find_first_not_of('0') == length.npos) return;
    throw ApiError(400, "body: found a body, expected none with GET");
  }
  if (!chunked && length.empty()) {
    throw ApiError(411, "Content-Length: found none, expected the length of the body");
  }
  if (chunked && head.header("transfer-encoding") != "chunked") {
    throw ApiError(400, "Transfer-Encoding: found another encoding, expected chunked");
  }
  if (!length.empty() && std::stoull(length) > max_body) throw body_too_long(max_body);
  const std::string encoding = head.header("content-encoding");
  if (!encoding.empty() && encoding != "identity") {
    throw ApiError(415, "Content-Encoding: found " + encoding + ", expected none");
  }
}

ApiError body_too_long(size_t max_body) {
  return {413, "body: found more than " + std::to_string(max_body) + " bytes, expected at most that"};
}

}  // namespace hero
