#pragma once

namespace CLI {
class App;
}

namespace hero {

/// Declares `hero generate DIR --prompt TEXT`.
void add_generate_command(CLI::App& hero);

}  // namespace hero
