#pragma once
// The program's own command line, without the options of its commands. No tensors: the launcher, which does
// not load LibTorch, declares it too.
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "cli/command.h"

namespace hero {

/// Declares the program's options, its footer and the names of all commands. `libraries`: the part of
/// --version that describes them.
std::unique_ptr<Command> declare_program(std::function<std::string()> libraries);

/// Whether a command of the program has this name.
bool is_command(std::string_view word);

/// The exit status of a program that ends now, after writing what is buffered: 1 instead of 0, with a line on
/// stderr, if standard output could not be written.
int exit_status(int status);

}  // namespace hero
