// Bytes of a client on a connection of the HTTP server.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "fuzz/checks.h"
#include "fuzz/targets.h"
#include "inference/server/completion_request.h"
#include "inference/server/http.h"

namespace hero::fuzz {

namespace http_fuzz {

class RunningServer {
 public:
  RunningServer() : server_({.max_body = 4096, .max_head = 2048, .threads = 2}, {}, [](const auto&, int) {}) {
    server_.get("/health",
                [](const std::string&, const ClientConnection&) { return HttpResponse{.body = "{}"}; },
                {.open = true, .always = true});
    server_.post("/v1/completions", [](const std::string& body, const ClientConnection&) {
      parse_completion_request(parse_body(body), {});
      return HttpResponse{.body = body};
    });
    port_ = server_.bind("127.0.0.1", 0);
    thread_ = std::thread([this] { server_.serve(); });
  }
  ~RunningServer() {
    server_.drain();
    thread_.join();
  }

  // Sends the bytes, and returns everything that the server answers until it closes the connection.
  std::string answer(std::string_view bytes) const {
    const int client = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port_))};
    ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    require(::connect(client, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "cannot connect");
    ::send(client, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ::shutdown(client, SHUT_WR);
    std::string all;
    char buffer[4096];
    for (ssize_t count; (count = ::recv(client, buffer, sizeof buffer, 0)) > 0;) all.append(buffer, count);
    ::close(client);
    return all;
  }

 private:
  HttpServer server_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace http_fuzz

bool read_http(std::string_view bytes) {
  static const http_fuzz::RunningServer server;
  const std::string answer = server.answer(bytes);
  require(answer.empty() || answer.starts_with("HTTP/1.1 "),
          "an answer that is not HTTP: " + answer.substr(0, 100));
  require(!answer.starts_with("HTTP/1.1 500 "), "status 500: " + answer);
  return answer.starts_with("HTTP/1.1 200 ");
}

}  // namespace hero::fuzz
