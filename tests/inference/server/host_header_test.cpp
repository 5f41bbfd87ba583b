#include "inference/server/host_header.h"

#include <gtest/gtest.h>

#include <cctype>
#include <cstdio>
#include <random>

namespace host_header_test {

TEST(HostHeader, Loopback) {
  for (const char* const host :
       {"localhost", "LocalHost", "localhost.", "127.0.0.1", "127.255.0.9", "::1", "0:0:0:0:0:0:0:1"}) {
    EXPECT_TRUE(hero::is_loopback(host)) << host;
  }
  for (const char* const host : {"", "0.0.0.0", "::", "128.0.0.1", "10.0.0.127", "localhost.example.com",
                                 "127.0.0.1.example.com", "::2"}) {
    EXPECT_FALSE(hero::is_loopback(host)) << host;
  }
}

TEST(HostHeader, HostWithoutPort) {
  EXPECT_EQ(hero::host_of("Example.COM:8000"), "example.com");
  EXPECT_EQ(hero::host_of("example.com."), "example.com");
  EXPECT_EQ(hero::host_of("[::1]:8000"), "::1");
  EXPECT_EQ(hero::host_of("[0:0::1]"), "::1");
  EXPECT_EQ(hero::host_of("fe80::2"), "fe80::2");
  EXPECT_EQ(hero::host_of(":8000"), "");
  for (const char* const invalid : {"[", "[::1", "[::1].example.com", "[::1]x", "[localhost]", "[127.0.0.1",
                                    "localhost:80x", "localhost:example.com", "localhost:80:80", "::1]:80"}) {
    EXPECT_EQ(hero::host_of(invalid), "") << invalid;
  }
}

std::string random_case(std::mt19937& random, std::string text) {
  for (char& c : text) c = random() % 2 ? static_cast<char>(std::toupper(c)) : c;
  return text;
}

// Random names and addresses, written in random ways: accepted exactly if the host is allowed.
TEST(HostHeader, RandomHosts) {
  std::mt19937 random(5);
  const auto below = [&](unsigned n) { return std::to_string(random() % n); };
  for (int i = 0; i < 2000; ++i) {
    char v6[64], expanded[64];
    const unsigned low = random() % 0x10000, high = random() % 0x10000;
    std::snprintf(v6, sizeof v6, "2001:db8::%x:%x", high, low);
    std::snprintf(expanded, sizeof expanded, "2001:0db8:0:0:0:0:%04x:%04x", high, low);
    const std::string name = "a" + below(100) + ".example", v4 = "10." + below(256) + ".0." + below(256);
    const struct {
      std::string bound, header;
    } cases[] = {{name, name}, {name, name + "."}, {v4, v4}, {v6, "[" + std::string(expanded) + "]"}};
    const auto& [bound, host] = cases[random() % 4];
    const std::string port = random() % 2 ? ":" + below(65536) : "",
                      header = random_case(random, host + port);
    EXPECT_TRUE(hero::AllowedHosts(bound, {}).contains(header)) << bound << " " << header;
    EXPECT_TRUE(hero::AllowedHosts("127.0.0.1", {bound}).contains(header)) << bound << " " << header;
    EXPECT_FALSE(hero::AllowedHosts("127.0.0.1", {}).contains(header)) << header;
    EXPECT_EQ(hero::AllowedHosts("::", {}).contains(header), bound != name) << header;
    for (const std::string& other :
         {"x" + header, header + "x", "localhost." + header, header + ".localhost"}) {
      EXPECT_FALSE(hero::AllowedHosts(bound, {}).contains(other)) << bound << " " << other;
    }
  }
}

TEST(HostHeader, LoopbackServer) {
  const hero::AllowedHosts hosts("127.0.0.1", {"Models.example"});
  for (const char* const header :
       {"localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:1", "models.example:80", "MODELS.example."}) {
    EXPECT_TRUE(hosts.contains(header)) << header;
  }
  for (const char* const header : {"", "example.com", "example.com:8000", "models.example.com", "192.0.2.1",
                                   "127.0.0.1.example", "[2001:db8::1]:80"}) {
    EXPECT_FALSE(hosts.contains(header)) << header;
  }
}

TEST(HostHeader, BoundAddresses) {
  const hero::AllowedHosts one("192.0.2.1", {});
  EXPECT_TRUE(one.contains("192.0.2.1:8000"));
  EXPECT_FALSE(one.contains("192.0.2.2:8000"));
  for (const char* const bound : {"0.0.0.0", "::"}) {
    const hero::AllowedHosts all(bound, {});
    EXPECT_TRUE(all.contains("192.0.2.2:8000")) << bound;
    EXPECT_TRUE(all.contains("[2001:db8::1]:80")) << bound;
    EXPECT_TRUE(all.contains("localhost")) << bound;
    EXPECT_FALSE(all.contains("example.com")) << bound;
  }
}

}  // namespace host_header_test
