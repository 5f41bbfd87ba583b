#include "inference/server/api_error.h"

#include <nlohmann/json.hpp>

namespace hero {

using nlohmann::ordered_json;

std::string error_json(const ApiError& error) {
  const auto or_null = [](const std::string& s) { return s.empty() ? ordered_json() : ordered_json(s); };
  const char* const type = error.status < 500 ? "invalid_request_error" : "server_error";
  const ordered_json object = {{"error",
                                {{"message", error.what()},
                                 {"type", type},
                                 {"param", or_null(error.param)},
                                 {"code", or_null(error.code)}}}};
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace hero
