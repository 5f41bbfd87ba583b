#pragma once

namespace CLI {
class App;
}

namespace hero {

/// `hero plan`: layouts of a run on a cluster, their predicted times and memory, the fastest first.
void add_plan_command(CLI::App& hero);

}  // namespace hero
