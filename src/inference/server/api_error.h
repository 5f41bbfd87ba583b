#pragma once
#include <stdexcept>
#include <string>

namespace hero {

/// A rejected or failed request, with the fields of OpenAI's error objects. The message states the field, the
/// found and the expected value.
struct ApiError : std::runtime_error {
  ApiError(int status, const std::string& message, std::string param = "", std::string code = "")
      : std::runtime_error(message), status(status), param(std::move(param)), code(std::move(code)) {}
  int status;         ///< HTTP status
  std::string param;  ///< the invalid field; "" for none
  std::string code;   ///< machine-readable error code; "" for none
};

/// A request that did not finish in time.
inline ApiError timeout_error() {
  return {504, "the request exceeded the server's time limit", "", "timeout"};
}

}  // namespace hero
