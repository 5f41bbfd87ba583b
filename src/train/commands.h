#pragma once

namespace CLI {
class App;
}

namespace hero {

/// Declares `hero train` and `hero report`. A training run's exit status goes to `status`.
void add_train_commands(CLI::App& hero, int& status);

}  // namespace hero
