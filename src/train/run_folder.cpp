#include "train/run_folder.h"

#include <functional>

#include "config/fields.h"
#include "hf/resolve.h"
#include "io/error.h"
#include "io/file_io.h"
#include "io/json.h"
#include "ops/cuda_library.h"
#include "optim/state_storage.h"
#include "tokenizer/tokenizer_export.h"
#include "train/existing_run.h"
#include "train/run_config.h"
#include "train/run_data.h"
#include "train/run_starts.h"
#include "train/version.h"

namespace hero {
namespace {

namespace fs = std::filesystem;

// Tokenizer files for the checkpoints of a run, with the chat template of the first source that has one: a
// blend may begin with documents. `tokenizer` was opened from `path`.
std::map<std::string, std::string> run_tokenizer_files(const Tokenizer& tokenizer, const std::string& path,
                                                       const std::vector<std::string>& prefixes) {
  auto files = tokenizer_files(tokenizer);
  for (const auto& prefix : prefixes) {
    if (files.contains("chat_template.jinja")) break;
    const auto found = read_token_files(prefix);
    if (!found || found->tokenizer == path) continue;
    const Tokenizer other(found->tokenizer);
    if (other.companions().contains("chat_template.jinja")) files = tokenizer_files(other);
  }
  return files;
}

// Validates everything and writes nothing.
Run prepare_run(const TrainOptions& options, const ExistingRun& found, RunLock lock) {
  Run run;
  run.lock = std::move(lock);
  run.checkpoint = found.newest.folder;
  if (!found.parent.empty()) {
    run.parent = read_branch_point(found.parent);
    run.checkpoint = run.parent->checkpoint;
  }
  const auto initial = find_initial_model(found.init_from);
  auto& config = run.config;
  if (run.parent) {
    const int64_t done = run.parent->step;
    config = resumed_config(options, run.checkpoint / "config.toml", initial, {run.checkpoint, done});
    if (config.train.steps == done) {
      throw UserError("train.steps: found " + std::to_string(done) + ", expected more than the step of " +
                      run.checkpoint.string() + " with --branch");
    }
  } else if (found.started) {
    config =
        resumed_config(options, options.run / "config.toml", initial, {run.checkpoint, first_step(run) - 1});
  } else {
    config = options.overrides.applied_to(base_config(initial));
  }
  if (!run.checkpoint.empty()) run.inputs = load_inputs(run.checkpoint);
  const RunData data = find_run_data(options, run);
  const auto& prefixes = data.plan.prefixes;

  const int64_t given = config.model.vocab_size;
  const auto files = first_token_files(prefixes);
  if (given == 0) {
    if (!files) {
      const IndexedDataset present(prefixes[0]);  // throws if there is no data at all
      throw UserError(
          "model.vocab_size: 0, and there is no vocabulary for " + prefixes[0] +
          "; expected the vocabulary's size if the data has no .json file from hero data tokenize");
    }
    // Rounded up for efficient GEMM shapes.
    config.model.vocab_size = (files->vocab_size + 63) / 64 * 64;
  }
  check(config);
  run.device = choose_device(config.train.device, "train.device");
  const StateStorage valid(config.optim.offload_folder, run.device);
  if (run.checkpoint.empty() && initial) {
    run.init_from = fs::absolute(initial->folder);
    run.added = check_init(*initial, config);
  }
  run.stream = std::make_unique<TokenStream>(
      data.plan, config.train.sequence, static_cast<uint64_t>(config.train.seed), config.model.vocab_size,
      files ? files->eos_id : -1, PackOptions{config.train.pack, config.train.loss_mask});
  run.validation = open_validation_sets(config, prefixes, run.stream->token_files());
  if (run.checkpoint.empty()) {
    if (const auto& vocabulary = run.stream->token_files()) {
      const Tokenizer tokenizer(vocabulary->tokenizer);
      run.inputs.tokenizer = tokenizer.model();
      run.inputs.tokenizer_files = run_tokenizer_files(tokenizer, vocabulary->tokenizer, prefixes);
      run.inputs.eos = vocabulary->eos_id;
    }
  } else if (const auto& vocabulary = run.stream->token_files();
             vocabulary && !run.inputs.tokenizer.empty()) {
    if (Tokenizer(vocabulary->tokenizer).model() != run.inputs.tokenizer) {
      throw UserError(vocabulary->tokenizer + ": different tokenizer than the run's (" +
                      (run.checkpoint / Tokenizer::file_name(run.inputs.tokenizer)).string() + ")");
    }
  }
  check_token_files(options, data, run);
  check_validation_files(run);
  return run;
}

// Creates and locks the folder of a new run; writes the configuration, last, and the record of this start.
void write_run(const fs::path& folder, const ExistingRun& found, Run& run, const World* world) {
  if (!run.parent && first_step(run) > run.config.train.steps) return;  // nothing to do
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) throw RunError(folder.string() + ": cannot create the folder: " + failed.message());
  if (found.started) {
    set_aside_damaged(found.newest);
  } else {
    run.lock = RunLock(folder);
    // Another process may have started here before the lock.
    if (run.parent) {
      check_new_folder(folder);
    } else {
      check_no_run(folder);
    }
    const auto init_from_file = folder / kInitFromFile;
    if (run.init_from.empty()) {
      fs::remove(init_from_file);
    } else {
      write_file(init_from_file.string(), run.init_from.string());
    }
    fs::remove(folder / kStartsFile);
    if (run.parent) run.checkpoint = copy_checkpoint(*run.parent, folder);
  }
  if (world) world->set_opened();
  record_start(folder, run);
  write_file((folder / "config.toml").string(), dump(run.config));
  if (run.parent) finish_branch_start(folder);
}

// Values that must be equal on all ranks.
std::vector<std::pair<std::string, std::string>> rank_invariants(const fs::path& folder, Run& run) {
  std::vector<std::pair<std::string, std::string>> all;
  all.emplace_back("hero", program_version());
  all.emplace_back("--run", fs::absolute(folder).lexically_normal().string());
  for (const auto& field : fields(run.config)) {
    if (!field.has(kMayDifferBetweenRanks)) all.emplace_back(field.key, literal(read(field)));
  }
  auto digests = run.inputs.token_files;
  digests.insert(run.inputs.validation_files.begin(), run.inputs.validation_files.end());
  for (const auto& [path, digest] : digests) all.emplace_back(path, describe(digest));
  return all;
}

// First character of rank 0's message: its result follows, or the error with which it rejects the run.
constexpr char kAccepted = '+', kRejected = '!';

// Runs `work` on rank 0 and returns its result on all ranks, which all throw its UserError.
std::string on_rank_zero(const World& world, const std::string& key,
                         const std::function<std::string()>& work) {
  if (!world.is_rank_zero()) {
    const auto message = world.get(key);
    if (message[0] == kAccepted) return message.substr(1);
    world.stop_heartbeat();
    throw UserError("rank 0: " + message.substr(1));
  }
  try {
    const auto result = work();
    world.set(key, kAccepted + result);
    return result;
  } catch (const UserError& error) {
    world.set(key, kRejected + std::string(error.what()));
    world.stop_heartbeat();
    throw;
  }
}

// The mesh depends on the number of processes, which the configuration does not contain.
void check_mesh(const Config& config, const World& world) {
  try {
    make_mesh(config, world.launch().rank, world.launch().world_size);
  } catch (const UserError&) {
    world.stop_heartbeat();
    throw;
  }
}

Run open_run_on_all_ranks(const TrainOptions& options, const World& world) {
  Run run;
  ExistingRun found;
  const auto opened = on_rank_zero(world, "run", [&] {
    RunLock lock;
    found = find_run(options, lock);
    run = prepare_run(options, found, std::move(lock));
    return nlohmann::json{found.started, found.newest.folder.string(), found.init_from.string(),
                          found.parent.string()}
        .dump();
  });
  if (!world.is_rank_zero()) {
    const auto message = nlohmann::json::parse(opened);
    const auto path = [&](size_t at) -> fs::path { return message.at(at).get<std::string>(); };
    found = {message.at(0), {path(1), {}}, path(2), path(3)};
    try {
      run = prepare_run(options, found, RunLock());
    } catch (const UserError& error) {
      world.check_same_on_all_ranks({{"opening the run", error.what()}});
      throw;
    }
  }
  world.check_same_on_all_ranks(rank_invariants(options.run, run));
  check_mesh(run.config, world);
  const auto checkpoint = on_rank_zero(world, "run folder", [&] {
    write_run(options.run, found, run, &world);
    return run.checkpoint.string();
  });
  run.checkpoint = checkpoint;
  return run;
}

}  // namespace

Run open_run(const TrainOptions& options, const World* world) {
  if (world) return open_run_on_all_ranks(options, *world);
  RunLock lock;
  const auto found = find_run(options, lock);
  auto run = prepare_run(options, found, std::move(lock));
  make_mesh(run.config, /*rank=*/0, /*size=*/1);
  write_run(options.run, found, run, /*world=*/nullptr);
  return run;
}

}  // namespace hero
