#include "train/trainer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>

#include "config/router_kinds.h"
#include "config/warnings.h"
#include "distributed/activity.h"
#include "distributed/world.h"
#include "hf/load.h"
#include "io/error.h"
#include "io/step_progress.h"
#include "io/stop_signal.h"
#include "model/counts.h"
#include "model/model_chunk.h"
#include "ops/cuda_library.h"
#include "optim/learning_rate.h"
#include "train/balance_warning.h"
#include "train/best_checkpoint.h"
#include "train/process.h"
#include "train/run_folder.h"
#include "train/run_log.h"
#include "train/skip_updates.h"
#include "train/status.h"
#include "train/step.h"
#include "train/validation.h"

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
  auto model = std::make_unique<Transformer>(run.config, run.device, model_shard(run.config, world));
  if (!run.init_from.empty()) load_weights(run.init_from, *model, run.added);
  if (!run.checkpoint.empty()) load_weights(run.checkpoint, *model);
  return model;
}

// Whether the loss is a mean over fewer targets than the positions of the global batch.
bool has_untrained_tokens(const TrainConfig& c) { return c.loss_mask || c.pack == Packing::kBestFit; }

Optimizer make_optimizer(Transformer& model, const World* world) {
  const auto& config = model.config().optim;
  if (!world) return Optimizer(model.parameters(), config);
  return Optimizer(model.parameters(), config, world->data(), world->replica());
}

class Trainer {
 public:
  /// `model`: with loaded weights, because the optimizer keeps fp32 values only of its own shards.
  Trainer(Run run, const fs::path& folder, const World* world, std::unique_ptr<Transformer> model)
      : run_(std::move(run)),
        folder_(folder),
        world_(world),
        mesh_(world ? world->mesh() : Mesh()),
        model_(std::move(model)),
        optimizer_(make_optimizer(*model_, world)),
        step_(*model_, optimizer_, state_.balance, world),
        writer_(store_client(), folder, static_cast<int>(run_.config.checkpoint.keep)),
        balance_warning_(run_.config),
        gemm_seconds_per_token_(training_flops_per_token(run_.config) /
                                gemm_flops_per_second(train_dtype(run_.config), run_.device) /
                                static_cast<double>(mesh_.size())) {
    const auto& layout = model_->layout();
    state_.balance = BalanceState::uniform(layout.layers(), layout.experts(), run_.device);
    if (!run_.checkpoint.empty()) state_ = load_training_state(run_.checkpoint, *model_, optimizer_.shards());
    saved_ = run_.checkpoint.empty() ? -1 : state_.step;
    writer_.mark_verified(state_.step - state_.skips.nonfinite_in_a_row - 1);
    if (run_.config.train.skip_nonfinite == 0) state_.skips.nonfinite_in_a_row = 0;
    if (run_.config.train.spike_skip == 0) state_.skips.losses = state_.skips.gradient_norms = {};
    if (run_.config.eval.every > 0) validation_.emplace(*model_, run_.validation, world);
    auto& best = state_.validation.best;
    if (best.step >= 0 && !is_comparable_best(run_, folder, best)) best = {};
    if (mesh_.rank != 0) return;
    log_.emplace(folder);
    log_->truncate_after(state_.step);
    record_best(folder, best);
  }

  int run() {
    const auto& c = run_.config;
    if (state_.validation.interrupted) repeat_validation();
    if (state_.step == c.train.steps && saved_ == state_.step && stop_ == 0) {
      if (log_) {
        std::fprintf(stderr, "%s: all %ld steps are done, nothing to do\n", folder_.c_str(), c.train.steps);
      }
      return 0;
    }
    if (log_) {
      log_start();
      progress_.emplace("step", c.train.steps,
                        ProgressOptions{.start = state_.step,
                                        .rate_unit = "tok",
                                        .rate_per_item = static_cast<double>(step_tokens()),
                                        .line_items = c.train.log_every,
                                        .line_width = 80});
    }
    while (state_.step < c.train.steps && stop_ == 0) {
      const auto record = step();
      if (!record) break;
      if (progress_)
        progress_->update(state_.step, status_note(*record, last_validation()), status_detail(*record));
      // In a row of skipped updates the weights do not change, and nothing verifies them.
      const bool updated = state_.skips.nonfinite_in_a_row == 0;
      if (c.checkpoint.every > 0 && state_.step % c.checkpoint.every == 0 && updated)
        save(/*wait=*/!c.checkpoint.asynchronous);
    }
    if (progress_) progress_->finish();
    finish_save();
    while (saved_ != state_.step) save(/*wait=*/true);
    if (log_) report_best();
    if (stop_ == 0) return 0;
    if (log_) {
      std::fprintf(stderr,
                   "%s: stopped by signal %d after step %ld of %ld and saved; continue with --resume\n",
                   folder_.c_str(), stop_, state_.step, c.train.steps);
    }
    return 128 + stop_;
  }

 private:
  std::optional<double> last_validation() const {
    return validated_.first < 0 ? std::nullopt : std::optional(validated_.second);
  }

  int64_t step_tokens() const { return run_.config.train.global_batch * run_.config.train.sequence; }

  void log_start() const {
    const auto& c = run_.config;
    int64_t parameters = 0;
    for (const auto& item : model_costs(c)) parameters += static_cast<int64_t>(item.parameters);
    std::string layout;
    if (world_) {
      layout = "data " + std::to_string(mesh_.data) + " x pipeline " + std::to_string(mesh_.pipeline) +
               ", experts over " + std::to_string(mesh_.expert) + ", ";
    }
    std::string begin = "starting";
    if (state_.step > 0) begin = "resuming after step " + std::to_string(state_.step);
    if (run_.parent) {
      begin =
          "branching from " + run_.parent->checkpoint.string() + " after step " + std::to_string(state_.step);
    }
    std::fprintf(stderr, "%s: %s router, %s parameters, %s tokens per step, %s%s, %s\n", folder_.c_str(),
                 c.router.kind.c_str(), format_with_commas(parameters).c_str(),
                 format_with_commas(step_tokens()).c_str(), layout.c_str(),
                 run_.device.is_cpu() ? (std::to_string(at::get_num_threads()) + " threads").c_str()
                                      : run_.device.str().c_str(),
                 begin.c_str());
    for (const std::string& line : run_.stream->summary()) std::fprintf(stderr, "%s\n", line.c_str());
  }

  /// One optimizer step over the global batch. nullopt if a stop signal ended it between micro-batches: the
  /// state is that of the preceding step.
  std::optional<StepRecord> step() {
    const auto& c = run_.config;
    const auto begin = std::chrono::steady_clock::now();
    const double waited = seconds_waited();
    const int64_t s = c.train.sequence, micro = c.train.micro_batch;
    StepRecord record{.step = state_.step + 1};
    record.lr = learning_rate(c.optim, record.step, c.train.steps);
    set_current_step(record.step);
    const int64_t norms = c.train.norms_every;
    const int64_t modules = c.model.num_nextn_predict_layers;
    std::vector<int64_t> module_targets;
    if (has_untrained_tokens(c.train) || (modules > 0 && c.train.document_mask)) {
      const auto targets = run_.stream->trained_targets(state_.samples, c.train.global_batch, modules,
                                                        /*own_document=*/c.train.document_mask);
      if (has_untrained_tokens(c.train)) record.trained_tokens = targets.front();
      module_targets.assign(targets.begin() + 1, targets.end());
    }
    step_.begin(busy_seconds_, norms > 0 && record.step % norms == 0, record.trained_tokens, module_targets);
    const auto read = [&](int64_t i) {
      // Micro-batches go to data ranks round-robin. Each needs its own pinned buffer, because the copy to a
      // GPU is asynchronous.
      const int64_t first = (i * mesh_.data + mesh_.data_rank()) * micro;
      const auto options = at::TensorOptions(at::kLong).pinned_memory(run_.device.is_cuda());
      const auto samples = at::empty({micro, s + 1}, options);
      MicroBatch batch{samples, {true, static_cast<uint64_t>(c.train.seed), record.step, first * s}};
      SampleOut out{.tokens = samples.data_ptr<int64_t>()};
      if (has_untrained_tokens(c.train)) {
        batch.labels = at::empty({micro, s + 1}, options);
        out.trained = batch.labels.data_ptr<int64_t>();
      }
      const bool documents = c.train.document_mask || c.train.document_positions;
      const auto starts = documents ? at::empty({micro, s + 1}, at::kLong) : at::Tensor();
      if (documents) out.starts = starts.data_ptr<int64_t>();
      run_.stream->read(state_.samples + first, micro, out);
      if (batch.labels.defined()) batch.labels.copy_(at::where(batch.labels.ne(0), samples, -1));
      if (documents) batch.position.starts_BS = at::empty({micro, s}, options).copy_(starts.slice(1, 0, s));
      return batch;
    };
    // Several processes agree on stopping at the end of the step, with its sums.
    const auto stopped = [&] { return !world_ && stop_signal() != 0; };
    if (!step_.run(c.train.global_batch / micro / mesh_.data, read, stopped)) {
      stop_ = stop_signal();
      return std::nullopt;
    }
    step_.request_stop(stop_signal());
    bool skipped = false;
    std::function<bool(double, double)> skips;
    if (c.train.skip_nonfinite > 0 || c.train.spike_skip > 0) {
      skips = [&](double loss, double norm) {
        return skipped = skips_update(c.train, state_.skips, loss, norm);
      };
    }
    step_.update(record.step, record.lr, skips);
    const auto sums = step_.read();
    stop_ = world_ ? sums.stop_signal : stop_signal();
    record.loss = sums.loss;
    record.lm = sums.lm;
    if (modules > 0) record.mtp = sums.mtp;
    record.balance = sums.balance;
    record.z = sums.z;
    record.coupling = sums.coupling;
    record.gradient_norm = sums.gradient_norm;
    record.skipped = state_.skips.skipped;
    const bool finite = std::isfinite(record.loss) && std::isfinite(record.gradient_norm);
    if (!std::isfinite(record.loss) && !skipped) fail("the loss is " + std::to_string(record.loss));
    if (!finite && !skipped) {
      const auto name = optimizer_.non_finite_gradient();
      fail("the gradient of " + (name.empty() ? "a parameter on another rank" : name) + " is not finite");
    }

    if (finite) writer_.mark_verified(state_.step);
    state_.step = record.step;
    state_.samples += c.train.global_batch;
    record.tokens = state_.tokens += step_tokens();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    busy_seconds_ = seconds - (seconds_waited() - waited);
    record.milliseconds = seconds * 1e3;
    for (const double busy : sums.busy) record.busy_ms.push_back(busy * 1e3);
    record.traffic = sums.traffic;
    record.tokens_per_second = static_cast<double>(step_tokens()) / seconds;
    record.mfu = record.tokens_per_second * gemm_seconds_per_token_;
    record.peak_memory_mib = peak_memory_mib(run_.device);
    record.max_expert_share = sums.layers.max_share();
    const bool last = record.step == c.train.steps;
    if (validation_ && (last || record.step % c.eval.every == 0)) record.validation = validate();
    if (log_) {
      log_->write(record, sums.layers, sums.norms,
                  last || (c.train.routing_every > 0 && record.step % c.train.routing_every == 0));
      warn_during_training(balance_warning_.add(sums.layers.assigned_LE()));
    }
    return record;
  }

  void warn_during_training(const std::vector<std::string>& lines) {
    if (progress_ && !lines.empty()) progress_->end_line();
    warn(lines);
  }

  // Losses on the validation data. nullopt if a stop signal ended the validation: the resumed run repeats it.
  std::optional<ValidationLosses> validate() {
    std::optional<ValidationLosses> losses;
    if (stop_ == 0) {
      auto shown = std::chrono::steady_clock::now();
      losses = validation_->run([&](double done) {
        const auto now = std::chrono::steady_clock::now();
        if (!progress_ || now - shown < std::chrono::seconds(5)) return;
        shown = now;
        progress_->update(state_.step, "validation " + std::to_string(std::lround(100 * done)) + "%");
      });
      stop_ = validation_->stop_signal();
    }
    state_.validation.interrupted = !losses;
    if (!losses) return losses;
    validated_ = {state_.step, losses->loss};
    return losses;
  }

  // The validation of the checkpoint's step, which a stop signal had interrupted.
  void repeat_validation() {
    state_.validation.interrupted = false;
    if (!validation_) return;
    const auto losses = validate();
    if (!losses) return;
    if (log_) log_->add_validation(state_.step, *losses);
    saved_ = -1;  // in the checkpoint it is still interrupted
    save(/*wait=*/true);
  }

  // Only checkpoints that an uninterrupted run saves too can become the best.
  void update_best() {
    const auto& c = run_.config;
    auto& best = state_.validation.best;
    best_before_save_ = best;
    const bool regular =
        state_.step == c.train.steps || (c.checkpoint.every > 0 && state_.step % c.checkpoint.every == 0);
    if (c.checkpoint.keep_best && regular && validated_.first == state_.step &&
        std::isfinite(validated_.second) && (best.step < 0 || validated_.second < best.loss)) {
      best = {state_.step, validated_.second,
              best.step <= writer_.verified() ? best.step : best.previous_step};
    }
    writer_.keep_best(best.step <= writer_.verified() ? best.step : best.previous_step);
  }

  void report_best() const {
    const auto& best = state_.validation.best;
    record_best(folder_, best);
    if (best.step < 0) return;
    std::fprintf(stderr, "%s: lowest validation loss %.4f after step %ld: %s\n", folder_.c_str(), best.loss,
                 best.step, checkpoint_folder(folder_, best.step).c_str());
  }

  // `wait`: returns when the checkpoint exists; otherwise training continues while it is written.
  void save(bool wait) {
    finish_save();
    if (saved_ == state_.step) return;
    saved_ = state_.step;
    update_best();
    const bool buffers = mesh_.data_rank() == 0;
    tolerate_one_failure([&] {
      writer_.save(state_.step,
                   checkpoint_contents(*model_, optimizer_.shards(), state_, run_.inputs, buffers), wait);
    });
  }

  void finish_save() {
    tolerate_one_failure([&] { writer_.finish(); });
    if (log_) record_best(folder_, state_.validation.best);
  }

  // Training continues after a failed save, which is tried again at the next interval, but not after two in a
  // row. All ranks decide alike.
  template <typename Work>
  void tolerate_one_failure(Work&& work) {
    try {
      work();
    } catch (const SaveError& error) {
      saved_ = -1;
      auto& best = state_.validation.best;
      if (best.step >= 0 && !fs::exists(checkpoint_folder(folder_, best.step))) best = best_before_save_;
      if (writer_.failures() > 1) throw RunError(std::string(error.what()) + "; two saves in a row failed");
      if (log_)
        warn_during_training({std::string(error.what()) + "; a second failure in a row ends the run"});
    }
  }

  StoreClient store_client() const {
    if (!world_) return {};
    return {.rank = mesh_.rank,
            .world_size = mesh_.size(),
            .set = [this](const std::string& key, const std::string& value) { world_->set(key, value); },
            .get = [this](const std::string& key) { return world_->get(key); }};
  }

  [[noreturn]] void fail(std::string what) {
    if (const int64_t skipped = state_.skips.nonfinite_in_a_row; skipped > 0)
      what += " after " + std::to_string(skipped) + " skipped updates in a row";
    try {
      writer_.finish();
    } catch (const RunError& error) {
      what += "; " + std::string(error.what());
    }
    throw RunError(folder_.string() + ": step " + std::to_string(state_.step + 1) + ": " + what +
                   "; last good checkpoint: " + resume_advice());
  }

  // Names the newest verified checkpoint, and what to do with later ones: --resume would continue from them.
  std::string resume_advice() const {
    std::string good, later;
    for (const auto& checkpoint : list_checkpoints(folder_)) {
      const auto name = checkpoint.filename().string();
      const auto step = checkpoint_step(name);
      if (step && *step <= writer_.verified()) {
        good = checkpoint.string();
      } else {
        later += (later.empty() ? "" : ", ") + name;
      }
    }
    if (good.empty() && later.empty()) return "none";
    if (good.empty()) return "none; no step after " + later + " had a finite loss: start a new run";
    return good + "; to continue from it, " +
           (later.empty() ? "" : "move " + later + " to another folder and ") +
           "pass --resume with a smaller --optim.lr or with --train.skip_nonfinite=10";
  }

  Run run_;
  fs::path folder_;
  const World* world_;
  Mesh mesh_;
  std::unique_ptr<Transformer> model_;
  Optimizer optimizer_;
  TrainingState state_;
  TrainStep step_;
  CheckpointWriter writer_;
  BalanceWarning balance_warning_;
  std::optional<RunLog> log_;                       // rank 0 only
  std::optional<StepProgress> progress_;            // rank 0 only
  std::optional<Validation> validation_;            // with eval.every
  std::pair<int64_t, double> validated_ = {-1, 0};  // step and loss of the last validation
  BestCheckpoint best_before_save_;
  double gemm_seconds_per_token_;  // seconds per token at the measured GEMM throughput
  double busy_seconds_ = 0;        // of the last step, without waiting for other ranks
  int stop_ = 0;                   // signal that stops all ranks after this step
  int64_t saved_ = -1;
};

}  // namespace

namespace {

void warn_about(const Run& run, int64_t ranks) {
  const auto& r = run.config.router;
  auto lines = options_without_effect(run.config, ranks, run.device.is_cuda());
  if (!run.init_from.empty() && !run.added.history && reads_option(r, "router.init") &&
      r.init != RouterConfig().init)
    lines.push_back("router.init = \"" + name_of(r.init) +
                    "\" has no effect: --init-from provides the weights of all routers");
  if (run.added.modules) {
    lines.push_back(
        run.init_from.string() +
        ": found no multi-token prediction modules: theirs are the initial weights of train.seed");
  }
  warn(lines);
  warn(options_missing_from_config_json(run.config, Dtype::kFp32));
}

int train_single_process(const TrainOptions& options) {
  auto run = open_run(options);
  if (run.device.is_cuda()) use_deterministic_algorithms();
  prepare_process(run.config, /*processes=*/1);
  warn_about(run, /*ranks=*/1);
  auto model = load_initial_model(run, /*world=*/nullptr);
  return Trainer(std::move(run), options.run, /*world=*/nullptr, std::move(model)).run();
}

// Timeout of the rendezvous, needed before the run is opened.
double initial_timeout(const TrainOptions& options) {
  auto own = options.run / "config.toml";
  if (!options.branch.empty() && !fs::exists(own)) own = branch_config(options.branch);
  const Config base = fs::exists(own) ? load_config({own.string()}, {}) : Config();
  return options.overrides.applied_to(base).parallel.timeout;
}

int train_distributed(const TrainOptions& given, const Launch& launch) {
  TrainOptions options = given;
  options.resume |= launch.restart_count > 0;
  World world(launch, initial_timeout(options));
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
    std::_Exit(1);
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
  const auto launch = read_launch();
  catch_stop_signals(/*announce=*/launch.rank == 0);
  return launch.host.empty() ? train_single_process(options) : train_distributed(options, launch);
}

}  // namespace hero
