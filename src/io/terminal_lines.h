#pragma once
// Lines of stdin, typed in a terminal or read from a file, and Ctrl-C in between.
#include <optional>
#include <string>

namespace hero {

class TerminalLines {
 public:
  /// `prompt`: shown before each line that is typed.
  explicit TerminalLines(std::string prompt);

  /// Whether stdin is a terminal.
  bool interactive() const { return interactive_; }
  /// The next line without its line feed; std::nullopt at the end of stdin (Ctrl-D). Ctrl-C discards a line.
  std::optional<std::string> next();

 private:
  const std::string prompt_;
  const bool interactive_;
  bool ended_ = false;
  std::string pending_;  // read, but not returned
};

/// From now on Ctrl-C (SIGINT) does not end the process.
void catch_interrupts();
/// Whether there was a Ctrl-C since the last call.
bool take_interrupt();

}  // namespace hero
