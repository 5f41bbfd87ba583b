#pragma once
// JSON text of responses.
#include <nlohmann/json.hpp>
#include <string>

#include "inference/server/api_error.h"

namespace hero {

/// Single-line JSON; replaces invalid UTF-8 by U+FFFD.
std::string json_line(const nlohmann::ordered_json& value);

/// {"error": {"message", "type", "param", "code"}}, without the status.
std::string error_json(const ApiError& error);

}  // namespace hero
