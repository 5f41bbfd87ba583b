#pragma once
#include <string>

#include "io/error.h"

namespace hero {

/// Message of the UserError thrown by `action`; "" if it throws none.
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
