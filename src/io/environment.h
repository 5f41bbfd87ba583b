#pragma once
// Environment variables of a process.

namespace hero {

/// Whether the environment variable `name` is 1; false if it is unset, empty or 0. UserError if it is
/// anything else.
bool environment_flag(const char* name);

}  // namespace hero
