#pragma once

namespace CLI {
class App;
}

namespace hero {

/// `hero cost`: parameters, operations, memory and traffic of a configuration, as a baseline and as HERO.
void add_cost_command(CLI::App& hero);

}  // namespace hero
