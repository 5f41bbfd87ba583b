#include "inference/server/api_json.h"

namespace hero {

using nlohmann::ordered_json;

std::string json_line(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string error_json(const ApiError& error) {
  const auto or_null = [](const std::string& s) { return s.empty() ? ordered_json() : ordered_json(s); };
  const char* const type = error.status < 500 ? "invalid_request_error" : "server_error";
  return json_line({{"error",
                     {{"message", error.what()},
                      {"type", type},
                      {"param", or_null(error.param)},
                      {"code", or_null(error.code)}}}});
}

}  // namespace hero
