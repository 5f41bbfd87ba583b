#pragma once

namespace CLI {
class App;
}

namespace hero {

/// Declares `hero study CONFIG --variants NAMES --seeds N --data PREFIX... --out DIR`. `status` becomes the
/// exit status of a study that was stopped or failed.
void add_study_command(CLI::App& hero, int& status);

}  // namespace hero
