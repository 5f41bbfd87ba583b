#pragma once

namespace hero {

class Command;

// Each declares the options of one command of declare_program, or of a few related ones. `status` becomes the
// exit status of a command that does not throw.

/// `hero analyze DIR --out OUT`.
void add_analyze_command(Command& hero);
/// `hero bench cost-table` and `hero bench step`.
void add_bench_commands(Command& hero);
/// `hero chat DIR`.
void add_chat_command(Command& hero);
/// `hero cost`: parameters, operations, memory and traffic, next to those with a baseline router.
void add_cost_command(Command& hero);
/// `hero data tokenizer`, `hero data tokenize`, `hero data info` and `hero data show`.
void add_data_commands(Command& hero);
/// `hero data show RUN`.
void add_data_show_command(Command& data);
/// `hero eval DIR --data PREFIX`.
void add_eval_command(Command& hero);
/// `hero export RUN_OR_CHECKPOINT DIR`.
void add_export_command(Command& hero);
/// `hero generate DIR --prompt TEXT`.
void add_generate_command(Command& hero);
/// `hero logits DIR --tokens FILE --out FILE` and `hero diff DIR_A DIR_B`.
void add_inspect_commands(Command& hero, int& status);
/// `hero plan`: parallel layouts on a cluster with predicted step time and memory, fastest first.
void add_plan_command(Command& hero);
/// `hero serve DIR`.
void add_serve_command(Command& hero);
/// `hero study CONFIG --variants NAMES --seeds N --data PREFIX... --out DIR`.
void add_study_command(Command& hero, int& status);
/// `hero train` and `hero report`.
void add_train_commands(Command& hero, int& status);

}  // namespace hero
