#pragma once

namespace CLI {
class App;
}

namespace hero {

/// Declares `hero eval DIR --data PREFIX`.
void add_eval_command(CLI::App& hero);

}  // namespace hero
