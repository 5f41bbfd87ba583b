#pragma once

namespace CLI {
class App;
}

namespace hero {

/// Declares `hero logits DIR --tokens FILE --out FILE` and `hero diff DIR_A DIR_B`.
void add_inspect_commands(CLI::App& hero, int& status);

}  // namespace hero
