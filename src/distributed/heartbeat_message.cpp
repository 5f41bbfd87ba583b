#include "distributed/heartbeat_message.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "distributed/activity.h"
#include "io/file_hash.h"

namespace hero {

std::string host_and_pid() {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  return std::string("host ") + host + ", pid " + std::to_string(getpid());
}

HeartbeatMessage make_heartbeat_message(int64_t sequence_number, bool ended) {
  const Activity activity = current_activity();
  return {sequence_number, activity.step, activity.operation, activity.last_operation,
          host_and_pid(),  ended,         bytes_hashed()};
}

std::string dump(const HeartbeatMessage& message) {
  return nlohmann::json{message.sequence_number, message.step,  message.operation,   message.last_operation,
                        message.process,         message.ended, message.bytes_hashed}
      .dump();
}

HeartbeatMessage parse_heartbeat_message(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  return {json.at(0), json.at(1), json.at(2), json.at(3), json.at(4), json.at(5), json.at(6)};
}

std::string describe(const HeartbeatMessage& message) {
  const std::string step = "at step " + std::to_string(message.step);
  if (!message.operation.empty()) return step + " in " + message.operation;
  return step + ", computing" + (message.last_operation.empty() ? "" : " after " + message.last_operation);
}

std::string format_seconds(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", std::round(10 * value) / 10);
  return text;
}

}  // namespace hero
