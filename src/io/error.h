#pragma once
#include <stdexcept>
#include <string>

namespace hero {

/// Invalid user input (command line, configuration, input file). The program prints the message, one line,
/// and exits with status 2. The message names the file, key or byte, the found and the expected value.
class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A failure not caused by invalid input (full disk, non-finite loss): exit status 1.
class RunError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace hero
