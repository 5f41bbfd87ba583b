#include "train/train.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>

#include "config/router_kinds.h"
#include "config/warnings.h"
#include "distributed/activity.h"
#include "distributed/world.h"
#include "hf/load.h"
#include "io/error.h"
#include "io/stop_signal.h"
#include "model/model_chunk.h"
#include "ops/cuda_library.h"
#include "train/process.h"
#include "train/run_folder.h"
#include "train/trainer.h"

namespace hero {
namespace {

namespace fs = std::filesystem;

// `world`, here and below: null for a single process.
ModelShard model_shard(const Config& config, const World* world) {
  const Mesh mesh = world ? world->mesh() : Mesh();
  auto shard = pipeline_shard(config, mesh.pipeline_rank(), mesh.pipeline);
  if (mesh.expert == 1) return shard;
  shard.experts = config.model.num_experts / mesh.expert;
  shard.first_expert = shard.experts * mesh.expert_rank();
  shard.expert_group = &world->expert();
  return shard;
}

// This rank's part of the model, with the weights that training starts from.
std::unique_ptr<Transformer> load_initial_model(const Run& run, const World* world) {
  const bool loads_all =
      !run.checkpoint.empty() || (!run.init_from.empty() && !run.added.history && !run.added.modules);
  auto model = std::make_unique<Transformer>(run.config, run.device, model_shard(run.config, world),
                                             loads_all ? InitialValues::kUnset : InitialValues::kSampled);
  if (!run.init_from.empty()) load_weights(run.init_from, *model, run.added);
  if (!run.checkpoint.empty()) load_weights(run.checkpoint, *model);
  return model;
}

void warn_about(const Run& run, int64_t ranks) {
  const auto& r = run.config.router;
  auto lines = options_without_effect(run.config, ranks, run.device.is_cuda());
  const bool sampled = run.checkpoint.empty() && (run.init_from.empty() || run.added.history);
  if (!run.init_from.empty() && !run.added.history && reads_option(r, "router.init") &&
      r.init != RouterConfig().init)
    lines.push_back("router.init = \"" + name_of(r.init) +
                    "\" has no effect: --init-from provides the weights of all routers");
  if (sampled && reads_option(r, "router.init") && r.init == RouterInit::kZero &&
      run.config.optim.history_lr == 0)
    lines.push_back(
        "optim.history_lr = 0.0: with router.init = \"zero\" the history weights stay 0, so no router "
        "reads its history");
  if (run.added.modules) {
    lines.push_back(
        run.init_from.string() +
        ": found no multi-token prediction modules: theirs are the initial weights of train.seed");
  }
  warn(lines);
  warn(sizes_without_kernels(run.config, run.device.is_cuda()));
  warn(options_missing_from_config_json(run.config, Dtype::kFp32));
}

int train_single_process(const TrainOptions& options) {
  catch_stop_signals();
  auto run = open_run(options);
  if (run.device.is_cuda()) use_deterministic_algorithms();
  prepare_process(run.config, /*processes=*/1);
  warn_about(run, /*ranks=*/1);
  auto model = load_initial_model(run, /*world=*/nullptr);
  return Trainer(std::move(run), options.run, /*world=*/nullptr, std::move(model)).run();
}

// Timeout of the rendezvous, needed before the run is opened.
double initial_timeout(const TrainOptions& options) {
  const auto own = options.run / "config.toml";
  Config base;
  if (fs::exists(own)) {
    base = load_config({own.string()}, {});
  } else if (!options.branch.empty()) {
    base = branch_config(options.branch);
  }
  return options.overrides.applied_to(base).parallel.timeout;
}

int train_distributed(const TrainOptions& given, const Launch& launch) {
  TrainOptions options = given;
  World world(launch, initial_timeout(options));
  catch_stop_signals(/*announce=*/launch.rank == 0);  // from now on: a signal ends the wait for other ranks
  options.resume |= launch.restart_count > 0 && world.opened_before();
  auto run = open_run(options, &world);
  if (run.device.is_cuda()) {
    run.device = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(launch.local_rank));
    use_deterministic_algorithms();
  }
  prepare_process(run.config, launch.local_world_size);
  if (world.is_rank_zero()) warn_about(run, launch.world_size);
  world.init_process_groups(run.config, run.device);
  std::optional<Trainer> trainer;
  try {
    auto model = load_initial_model(run, &world);
    trainer.emplace(std::move(run), options.run, &world, std::move(model));
    return trainer->run();
  } catch (const std::exception& error) {
    // Exit without saving or waiting: other ranks may never respond.
    std::fprintf(stderr, "hero: %s\n", diagnosis(error.what()).c_str());
    std::fflush(stderr);
    std::_Exit(dynamic_cast<const UserError*>(&error) ? 2 : 1);
  }
}

}  // namespace

int train(const TrainOptions& options) {
  const auto reject = [](const std::string& option, const std::string& why) {
    throw UserError("--branch: found " + option + " too, expected one of them: " + why);
  };
  if (!options.branch.empty() && options.resume)
    reject("--resume", "a branch is resumed with --run and --resume alone");
  if (!options.branch.empty() && !options.init_from.empty())
    reject("--init-from", "a branch has its parent's weights");
  if (options.data_changed && !options.resume && options.branch.empty())
    throw UserError("--data-changed: found neither --resume nor --branch, expected one of them");
  const auto launch = read_launch();
  return launch.host.empty() ? train_single_process(options) : train_distributed(options, launch);
}

}  // namespace hero
