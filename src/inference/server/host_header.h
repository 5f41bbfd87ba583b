#pragma once
// The Host header of requests. A web page whose host name resolves to the server's address (DNS rebinding)
// has the page's host there, so only known hosts are served.
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace hero {

/// Whether `host` is localhost or a loopback address.
bool is_loopback(const std::string& host);

/// The host of a Host header without its port: in lower case, without brackets and final dot. "" for an
/// invalid header.
std::string host_of(std::string_view header);

class AllowedHosts {
 public:
  /// `bound`: the address that the server listens on. `names`: more hosts.
  AllowedHosts(const std::string& bound, const std::vector<std::string>& names);

  /// Whether the host of a Host header is a loopback name or address, `bound` or one of `names`. A server
  /// that listens on all addresses accepts every address: DNS rebinding needs a name.
  bool contains(std::string_view header) const;

 private:
  std::set<std::string> hosts_;
  bool all_addresses_;
};

}  // namespace hero
