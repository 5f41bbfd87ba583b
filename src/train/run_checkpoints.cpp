#include "train/run_checkpoints.h"

#include <cmath>
#include <cstdio>

#include "io/error.h"
#include "train/best_checkpoint.h"

namespace hero {
namespace {

namespace fs = std::filesystem;

StoreClient store_client(const World* world) {
  if (!world) return {};
  return {.rank = world->mesh().rank,
          .world_size = world->mesh().size(),
          .set = [world](const std::string& key, const std::string& value) { world->set(key, value); },
          .get = [world](const std::string& key) { return world->get(key); }};
}

}  // namespace

RunCheckpoints::RunCheckpoints(const Run& run, fs::path folder, const World* world, const Transformer& model,
                               const Optimizer& optimizer, TrainingState& state, RunOutput* output)
    : run_(run),
      folder_(std::move(folder)),
      world_(world),
      model_(model),
      optimizer_(optimizer),
      state_(state),
      output_(output),
      writer_(store_client(world), folder_, static_cast<int>(run.config.checkpoint.keep)),
      saved_(run.checkpoint.empty() ? -1 : state.step) {
  writer_.mark_verified(state.step - state.skips.nonfinite_in_a_row - 1);
  auto& best = state.validation.best;
  if (best.step >= 0 && !is_comparable_best(run, folder_, best)) best = {};
  if (output) record_best(folder_, best);
}

void RunCheckpoints::save(bool wait) {
  finish();
  if (is_saved()) return;
  saved_ = state_.step;
  update_best();
  const bool buffers = !world_ || world_->mesh().data_rank() == 0;
  tolerate_one_failure([&] {
    writer_.save(state_.step, checkpoint_contents(model_, optimizer_.shards(), state_, run_.inputs, buffers),
                 wait);
  });
}

void RunCheckpoints::save_again() {
  saved_ = -1;
  save(/*wait=*/true);
}

void RunCheckpoints::finish() {
  tolerate_one_failure([&] { writer_.finish(); });
  if (output_) record_best(folder_, state_.validation.best);
}

// Only checkpoints that an uninterrupted run saves too can become the best.
void RunCheckpoints::update_best() {
  const auto& c = run_.config;
  auto& best = state_.validation.best;
  best_before_save_ = best;
  const bool regular =
      state_.step == c.train.steps || (c.checkpoint.every > 0 && state_.step % c.checkpoint.every == 0);
  if (c.checkpoint.keep_best && regular && validated_.first == state_.step &&
      std::isfinite(validated_.second) && (best.step < 0 || validated_.second < best.loss)) {
    best = {state_.step, validated_.second, best.step <= writer_.verified() ? best.step : best.previous_step};
  }
  writer_.keep_best(best.step <= writer_.verified() ? best.step : best.previous_step);
}

void RunCheckpoints::report_best() const {
  const auto& best = state_.validation.best;
  record_best(folder_, best);
  if (best.step < 0) return;
  std::fprintf(stderr, "%s: lowest validation loss %.4f after step %ld: %s\n", folder_.c_str(), best.loss,
               best.step, checkpoint_folder(folder_, best.step).c_str());
}

void RunCheckpoints::tolerate_one_failure(const std::function<void()>& work) {
  try {
    work();
  } catch (const SaveError& error) {
    saved_ = -1;
    auto& best = state_.validation.best;
    if (best.step >= 0 && !fs::exists(checkpoint_folder(folder_, best.step))) best = best_before_save_;
    if (writer_.failures() > 1) throw RunError(std::string(error.what()) + "; two saves in a row failed");
    if (output_) output_->warn({std::string(error.what()) + "; a second failure in a row ends the run"});
  }
}

std::string RunCheckpoints::advice_after_failure() {
  std::string text;
  try {
    writer_.finish();
  } catch (const RunError& error) {
    text = "; " + std::string(error.what());
  }
  return text + "; last good checkpoint: " + resume_advice();
}

// Names the newest verified checkpoint, and what to do with later ones: --resume would continue from them.
std::string RunCheckpoints::resume_advice() const {
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

}  // namespace hero
