#pragma once

namespace CLI {
class App;
}

namespace hero {

/// Declares `hero export RUN_OR_CHECKPOINT DIR`.
void add_export_command(CLI::App& hero);

}  // namespace hero
