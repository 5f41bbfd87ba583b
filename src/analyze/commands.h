#pragma once

namespace CLI {
class App;
}

namespace hero {

/// Declares `hero analyze DIR --out OUT`.
void add_analyze_command(CLI::App& hero);

}  // namespace hero
