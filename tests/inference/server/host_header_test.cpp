#include "inference/server/host_header.h"

#include <gtest/gtest.h>

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
  EXPECT_EQ(hero::host_of("["), "");
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
