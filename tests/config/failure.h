#pragma once
#include <string>

#include "io/error.h"

namespace hero {

/// The message of the UserError that `action` throws; "" when it throws none.
template <class Action>
std::string failure(Action action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

}  // namespace hero
