#include "distributed/sign.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "distributed/activity.h"

namespace hero {

std::string who_am_i() {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  return std::string("host ") + host + ", pid " + std::to_string(getpid());
}

Sign own_sign(int64_t number, bool ended) {
  const Activity activity = current_activity();
  return {number, activity.step, activity.operation, activity.last, who_am_i(), ended};
}

std::string dump(const Sign& sign) {
  return nlohmann::json{sign.number, sign.step, sign.operation, sign.last, sign.who, sign.ended}.dump();
}

Sign parse_sign(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  return {json.at(0), json.at(1), json.at(2), json.at(3), json.at(4), json.at(5)};
}

std::string place(const Sign& sign) {
  const std::string step = "at step " + std::to_string(sign.step);
  if (!sign.operation.empty()) return step + " in " + sign.operation;
  return step + ", computing" + (sign.last.empty() ? "" : " after " + sign.last);
}

std::string seconds(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", std::round(10 * value) / 10);
  return text;
}

}  // namespace hero
