#include "inference/server/host_header.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cctype>

namespace hero {
namespace {

// An IPv6 address in its shortest form; other hosts in lower case, without final dot.
std::string normalized_host(std::string_view text) {
  std::string host(text);
  if (in6_addr v6; ::inet_pton(AF_INET6, host.c_str(), &v6) == 1) {
    char shortest[INET6_ADDRSTRLEN];
    return ::inet_ntop(AF_INET6, &v6, shortest, sizeof shortest);
  }
  if (host.ends_with('.')) host.pop_back();
  std::ranges::transform(host, host.begin(), [](unsigned char c) { return std::tolower(c); });
  return host;
}

bool is_address(const std::string& host) {
  in_addr v4;
  in6_addr v6;
  return ::inet_pton(AF_INET, host.c_str(), &v4) == 1 || ::inet_pton(AF_INET6, host.c_str(), &v6) == 1;
}

// ":80", ":" or nothing.
bool is_port(std::string_view text) {
  return text.empty() || (text[0] == ':' && text.find_first_not_of("0123456789", 1) == text.npos);
}

}  // namespace

bool is_loopback(const std::string& host) {
  if (in_addr v4; ::inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  const std::string name = normalized_host(host);
  return name == "localhost" || name == "::1";
}

std::string host_of(std::string_view header) {
  if (is_address(std::string(header))) return normalized_host(header);
  const bool bracketed = header.starts_with('[');
  const size_t end = bracketed ? header.find(']') : header.find(':');
  if (bracketed && end == header.npos) return "";
  const auto host = header.substr(bracketed, end - bracketed);
  const auto port = end == header.npos ? "" : header.substr(end + bracketed);
  if (!is_port(port) || (bracketed && !is_address(std::string(host)))) return "";
  return normalized_host(host);
}

AllowedHosts::AllowedHosts(const std::string& bound, const std::vector<std::string>& names)
    : hosts_{normalized_host(bound)}, all_addresses_(bound == "0.0.0.0" || normalized_host(bound) == "::") {
  for (const auto& name : names) hosts_.insert(normalized_host(name));
}

bool AllowedHosts::contains(std::string_view header) const {
  const std::string host = host_of(header);
  return is_loopback(host) || hosts_.contains(host) || (all_addresses_ && is_address(host));
}

}  // namespace hero
