#pragma once

namespace CLI {
class App;
}

namespace hero {

/// Declares `hero serve DIR`.
void add_serve_command(CLI::App& hero);

}  // namespace hero
