#pragma once
#include <stdexcept>
#include <string>

namespace hero {

/// A request that gets no answer: what OpenAI's clients read from an error's body. The message names the
/// field, what was found and what was expected.
struct ApiError : std::runtime_error {
  ApiError(int status, const std::string& message, std::string param = "", std::string code = "")
      : std::runtime_error(message), status(status), param(std::move(param)), code(std::move(code)) {}
  int status;         ///< of HTTP
  std::string param;  ///< the field at fault; "" for none
  std::string code;   ///< a word for programs; "" for none
};

/// {"error": {"message", "type", "param", "code"}}, without the status.
std::string error_json(const ApiError& error);

}  // namespace hero
