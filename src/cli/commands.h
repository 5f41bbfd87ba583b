#pragma once

namespace CLI {
class App;
}

namespace hero {

// Each declares one command of the program, or a few related ones. `status` becomes the exit status where a
// command ends without an exception.

/// `hero analyze DIR --out OUT`.
void add_analyze_command(CLI::App& hero);
/// `hero bench cost-table` and `hero bench step`.
void add_bench_commands(CLI::App& hero);
/// `hero cost`: parameters, operations, memory and traffic of a configuration, for the baseline and for HERO.
void add_cost_command(CLI::App& hero);
/// `hero data tokenizer`, `hero data tokenize` and `hero data info`.
void add_data_commands(CLI::App& hero);
/// `hero eval DIR --data PREFIX`.
void add_eval_command(CLI::App& hero);
/// `hero export RUN_OR_CHECKPOINT DIR`.
void add_export_command(CLI::App& hero);
/// `hero generate DIR --prompt TEXT`.
void add_generate_command(CLI::App& hero);
/// `hero logits DIR --tokens FILE --out FILE` and `hero diff DIR_A DIR_B`.
void add_inspect_commands(CLI::App& hero, int& status);
/// `hero plan`: layouts of a run on a cluster with their predicted times and memory, fastest first.
void add_plan_command(CLI::App& hero);
/// `hero serve DIR`.
void add_serve_command(CLI::App& hero);
/// `hero study CONFIG --variants NAMES --seeds N --data PREFIX... --out DIR`.
void add_study_command(CLI::App& hero, int& status);
/// `hero train` and `hero report`.
void add_train_commands(CLI::App& hero, int& status);

}  // namespace hero
