#pragma once

namespace CLI {
class App;
}

namespace hero {

/// Declares `hero data tokenizer`, `hero data tokenize` and `hero data info`, which run while the command
/// line is parsed.
void add_data_commands(CLI::App& hero);

}  // namespace hero
