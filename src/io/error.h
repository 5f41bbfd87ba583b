#pragma once
#include <stdexcept>
#include <string>

namespace hero {

/// A mistake of the user's (command line, configuration, input file). The program prints its one line and
/// leaves with status 2. The text names the file, the key or the byte, what was found and what was expected.
class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What failed on the way and is no mistake in the input (a full disk, a non-finite loss): status 1.
class RunError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace hero
