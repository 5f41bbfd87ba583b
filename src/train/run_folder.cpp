#include "train/run_folder.h"

#include <algorithm>
#include <optional>

#include "config/fields.h"
#include "config/router_kinds.h"
#include "hf/load.h"
#include "hf/model_config.h"
#include "hf/resolve.h"
#include "io/error.h"
#include "io/file_hash.h"
#include "io/file_io.h"
#include "ops/cuda_library.h"
#include "tokenizer/tokenizer_export.h"
#include "train/version.h"

namespace hero {
namespace {

namespace fs = std::filesystem;

// File in the run folder with the source of the initial weights, needed to restart a run that ended before
// its first checkpoint.
constexpr const char* kInitFromFile = "init-from";

std::string join(const std::vector<std::string>& parts) {
  std::string text;
  for (const auto& p : parts) text += (text.empty() ? "" : ", ") + p;
  return text;
}

// The model of --init-from.
struct InitialModel {
  fs::path folder;
  Config config;
};

std::optional<InitialModel> find_initial_model(const fs::path& init_from) {
  if (init_from.empty()) return std::nullopt;
  auto folder = resolve_model_dir(init_from);
  auto config = load_model_config(folder);
  return InitialModel{std::move(folder), std::move(config)};
}

// Configuration before files and flags: defaults, or the initial model's.
Config base_config(const std::optional<InitialModel>& initial) {
  Config base;
  if (!initial) return base;
  const Config& from = initial->config;
  copy_values(from, base, [&](const Field& field) {
    return field.has(kFromModelFolder) && reads_option(from.router, field);
  });
  base.train.sequence = std::min(base.train.sequence, base.model.max_position_embeddings);
  return base;
}

// The model as in its config.json, without options that its family does not use.
Config through_config_json(const Config& config, const fs::path& folder) {
  return parse_model_config(model_config_json(config, /*eos=*/-1), folder.string());
}

// Rejects options that do not match the weights. Files and flags may add a history, extend positions and
// change training options. Returns whether they add a history.
bool check_init(const fs::path& init_from, const InitialModel& initial, const Config& config) {
  const auto& [folder, from] = initial;
  const bool new_history = router_kind_info(config.router).extends == from.router.kind;
  const auto mismatches = differences(
      through_config_json(from, folder), through_config_json(config, folder), [&](const Field& field) {
        return field.has(kMustMatchWeights) && !(new_history && field.key.starts_with("router."));
      });
  if (!mismatches.empty()) {
    throw UserError(init_from.string() + ": its weights belong to another model (" + mismatches.front() +
                    "); they must match");
  }
  check_weights(folder, config, new_history);
  return new_history;
}

// The configuration of a resumed run: its own, with permitted changes from the command line. Given files
// start from base_config, not from the run.
Config resumed_config(const TrainOptions& options, const std::optional<InitialModel>& initial) {
  const auto path = options.run / "config.toml";
  const auto own = load_config({path.string()}, {});
  auto requested = options.overrides.applied_to(options.overrides.has_files() ? base_config(initial) : own);
  if (requested.model.vocab_size == 0) requested.model.vocab_size = own.model.vocab_size;
  const auto rejected =
      differences(own, requested, [](const Field& field) { return field.has(kFixedOnResume); });
  if (!rejected.empty()) {
    throw UserError(path.string() + ": the run was started with different settings (" + join(rejected) +
                    "); resume with its own configuration");
  }
  return requested;
}

// Whether the folder contains a run, and the checkpoint to resume from.
struct ExistingRun {
  bool started = false;
  fs::path checkpoint;
};

// A run folder that lost its configuration must not count as a new or a default run, whose first step would
// truncate metrics.jsonl.
void check_config_is_whole(const fs::path& run) {
  const auto path = run / "config.toml";
  const bool logged = fs::exists(run / "metrics.jsonl");
  if (!logged && list_checkpoints(run).empty()) return;
  const std::string remedy = ", expected the configuration of the run with this folder's " +
                             std::string(logged ? "metrics.jsonl" : "checkpoints") +
                             "; restore it, or pass another --run";
  if (!fs::exists(path)) throw UserError(path.string() + ": not found" + remedy);
  if (!read_file(path.string()).ends_with('\n'))
    throw UserError(path.string() + ": found a truncated file" + remedy);
}

// Inspects the run folder. Rank 0 only: locks the folder and removes leftovers.
ExistingRun find_run(const TrainOptions& options, RunLock& lock) {
  ExistingRun found{.started = fs::exists(options.run / "config.toml"), .checkpoint = {}};
  check_config_is_whole(options.run);
  if (!found.started) return found;
  if (!options.resume) {
    throw UserError(options.run.string() +
                    ": contains a run; pass --resume to continue it, or another --run");
  }
  lock = RunLock(options.run);
  clean_leftovers(options.run);
  found.checkpoint = newest_intact_checkpoint(options.run);
  return found;
}

// `writes`: creates the folder and writes the run's configuration.
Run open_run_folder(const TrainOptions& given_options, const ExistingRun& found, bool writes, RunLock lock) {
  Run run;
  run.lock = std::move(lock);
  run.checkpoint = found.checkpoint;
  TrainOptions options = given_options;
  const bool started = found.started;
  const fs::path init_from_file = options.run / kInitFromFile;
  if (started && run.checkpoint.empty() && options.init_from.empty() && fs::exists(init_from_file))
    options.init_from = read_file(init_from_file.string());
  const auto initial = find_initial_model(options.init_from);
  run.config =
      started ? resumed_config(options, initial) : options.overrides.applied_to(base_config(initial));
  auto& config = run.config;
  if (!run.checkpoint.empty()) {
    run.inputs = load_inputs(run.checkpoint);
    if (!options.data.empty() && options.data != run.inputs.data) {
      throw UserError("--data: found " + join(options.data) + ", expected " + join(run.inputs.data) +
                      ", as when the run was started");
    }
  } else {
    run.inputs.data = options.data;
  }
  if (run.inputs.data.empty())
    throw UserError(
        "--data: none given, expected PREFIX of .bin and .idx files (hero data tokenize writes them)");

  const int64_t given = config.model.vocab_size;
  const auto first = parse_sources(run.inputs.data)[0].prefix;
  const auto files = read_token_files(first);
  if (given == 0) {
    if (!files) {
      const IndexedDataset present(resolve_prefix(first, "train"));  // throws if there is no data at all
      throw UserError(
          "model.vocab_size: 0, and there is no vocabulary for " + run.inputs.data[0] +
          "; expected the vocabulary's size if the data has no .json file from hero data tokenize");
    }
    // Rounded up for efficient GEMM shapes.
    config.model.vocab_size = (files->vocab_size + 63) / 64 * 64;
  }
  check(config);
  run.device = choose_device(config.train.device, "train.device");
  if (run.checkpoint.empty() && initial) {
    run.init_from = fs::absolute(initial->folder);
    run.new_history = check_init(options.init_from, *initial, config);
  }
  run.stream = std::make_unique<TokenStream>(parse_sources(run.inputs.data), config.train.sequence,
                                             static_cast<uint64_t>(config.train.seed),
                                             config.model.vocab_size, files ? files->eos_id : -1);
  if (run.checkpoint.empty()) {
    if (const auto& vocabulary = run.stream->token_files()) {
      const Tokenizer tokenizer(vocabulary->tokenizer);
      run.inputs.tokenizer = tokenizer.model();
      run.inputs.tokenizer_files = tokenizer_files(tokenizer);
      run.inputs.eos = vocabulary->eos_id;
    }
  } else if (const auto& vocabulary = run.stream->token_files();
             vocabulary && !run.inputs.tokenizer.empty()) {
    if (Tokenizer(vocabulary->tokenizer).model() != run.inputs.tokenizer) {
      throw UserError(vocabulary->tokenizer + ": different tokenizer than the run's (" +
                      (run.checkpoint / Tokenizer::file_name(run.inputs.tokenizer)).string() + ")");
    }
  }
  if (!writes) return run;
  std::error_code failed;
  fs::create_directories(options.run, failed);
  if (failed) throw RunError(options.run.string() + ": cannot create the folder: " + failed.message());
  if (!started) {
    run.lock = RunLock(options.run);
    if (run.init_from.empty()) {
      fs::remove(init_from_file);
    } else {
      write_file(init_from_file.string(), run.init_from.string());
    }
  }
  write_file((options.run / "config.toml").string(), dump(config));
  return run;
}

// Values that must be equal on all ranks.
std::vector<std::pair<std::string, std::string>> rank_invariants(Run& run) {
  std::vector<std::pair<std::string, std::string>> all;
  all.emplace_back("hero", program_version());
  for (const auto& field : fields(run.config)) {
    if (!field.has(kMayDifferBetweenRanks)) all.emplace_back(field.key, literal(read(field)));
  }
  for (const auto& source : parse_sources(run.inputs.data)) {
    const auto prefix = resolve_prefix(source.prefix, "train");
    all.emplace_back(prefix + ".idx", "sha256 " + hash_file(prefix + ".idx").sha256);
    all.emplace_back(prefix + ".bin", std::to_string(fs::file_size(prefix + ".bin")) + " bytes");
  }
  return all;
}

// Prefix of rank 0's message if it rejects the run.
constexpr char kRejected = '!';

}  // namespace

Run open_run(const TrainOptions& options, const World* world) {
  RunLock lock;
  if (!world) {
    const auto found = find_run(options, lock);
    return open_run_folder(options, found, /*writes=*/true, std::move(lock));
  }
  Run run;
  if (world->is_rank_zero()) {
    try {
      const auto found = find_run(options, lock);
      run = open_run_folder(options, found, /*writes=*/true, std::move(lock));
      world->set("run", (found.started ? "1" : "0") + found.checkpoint.string());
    } catch (const UserError& error) {
      world->set("run", kRejected + std::string(error.what()));
      world->stop_heartbeat();
      throw;
    }
  } else {
    const auto message = world->get("run");
    if (message[0] == kRejected) {
      world->stop_heartbeat();
      throw UserError("rank 0: " + message.substr(1));
    }
    try {
      run = open_run_folder(options, {message[0] == '1', message.substr(1)}, /*writes=*/false, RunLock());
    } catch (const UserError& error) {
      world->check_same_on_all_ranks({{"opening the run", error.what()}});
      throw;
    }
  }
  world->check_same_on_all_ranks(rank_invariants(run));
  return run;
}

}  // namespace hero
