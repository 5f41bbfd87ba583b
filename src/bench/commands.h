#pragma once

namespace CLI {
class App;
}

namespace hero {

/// Declares `hero bench cost-table` and `hero bench step`.
void add_bench_commands(CLI::App& hero);

}  // namespace hero
