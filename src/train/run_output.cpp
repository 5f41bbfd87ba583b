#include "train/run_output.h"

#include <ATen/Parallel.h>

#include <chrono>
#include <cmath>
#include <cstdio>

#include "config/data_phases.h"
#include "config/warnings.h"
#include "model/counts.h"
#include "ops/gemm_throughput.h"
#include "train/status.h"

namespace hero {

RunOutput::RunOutput(const Run& run, std::filesystem::path folder, const World* world, int64_t step)
    : run_(run), folder_(std::move(folder)), world_(world), log_(folder_), balance_warning_(run.config) {
  log_.truncate_after(step);
}

void RunOutput::start(int64_t step, double gemm_flops) {
  print_start(step, gemm_flops);
  const auto& c = run_.config.train;
  progress_ = std::make_unique<StepProgress>(
      "step", c.steps,
      ProgressOptions{.start = step,
                      .rate_unit = "tok",
                      .rate_per_item = static_cast<double>(c.global_batch * c.sequence),
                      .line_items = c.log_every,
                      .line_width = 80});
}

void RunOutput::print_start(int64_t step, double gemm_flops) const {
  const auto& c = run_.config;
  int64_t parameters = 0;
  for (const auto& item : model_costs(c)) parameters += static_cast<int64_t>(item.parameters);
  std::string layout;
  if (world_) {
    const auto& mesh = world_->mesh();
    layout = "data " + std::to_string(mesh.data) + " x pipeline " + std::to_string(mesh.pipeline) +
             ", experts over " + std::to_string(mesh.expert) + ", ";
  }
  std::string begin = "starting";
  if (step > 0) begin = "resuming after step " + std::to_string(step);
  if (run_.parent)
    begin = "branching from " + run_.parent->checkpoint.string() + " after step " + std::to_string(step);
  const auto dtype = train_dtype(c);
  const bool cpu = run_.device.is_cpu();
  std::fprintf(stderr,
               "%s: %s router, %s parameters, %s tokens per step, %s%s, %s GEMM at %.3g TFLOP/s%s, %s\n",
               folder_.c_str(), c.router.kind.c_str(), format_with_commas(parameters).c_str(),
               format_with_commas(c.train.global_batch * c.train.sequence).c_str(), layout.c_str(),
               cpu ? (std::to_string(at::get_num_threads()) + " threads").c_str() : run_.device.str().c_str(),
               name_of(c.train.dtype).c_str(), gemm_flops / 1e12,
               cpu ? (" (" + gemm_instructions(dtype) + ")").c_str() : "", begin.c_str());
  for (int64_t phase = 1; phase <= std::ssize(c.data.phases); ++phase)
    std::fprintf(stderr, "%s\n", describe_phase(c, phase).c_str());
  // It shuffles the documents of the first epoch, which a resumed run may not need.
  if (step > 0 && run_.changed_data.empty()) return;
  for (const std::string& line : run_.stream->summary()) std::fprintf(stderr, "%s\n", line.c_str());
}

void RunOutput::announce_phase(int64_t step) {
  const auto phase = phase_of_step(run_.config, step);
  if (!phase || step == 1 || phase == phase_of_step(run_.config, step - 1)) return;
  progress_->end_line();
  std::fprintf(stderr, "step %ld begins %s\n", step, describe_phase(run_.config, *phase).c_str());
}

void RunOutput::write(const StepRecord& record, const StepSums& sums) {
  const auto& c = run_.config.train;
  const bool snapshot = record.step == c.steps || (c.routing_every > 0 && record.step % c.routing_every == 0);
  log_.write(record, sums.layers, sums.norms, snapshot);
  warn(balance_warning_.add(sums.layers.assigned_LE()));
  if (record.validation) validation_loss_ = record.validation->loss;
  progress_->update(record.step, status_note(record, validation_loss_), status_detail(record));
}

std::function<void(double)> RunOutput::validation_progress(int64_t step) {
  return [this, step, shown = std::chrono::steady_clock::now()](double done) mutable {
    const auto now = std::chrono::steady_clock::now();
    if (!progress_ || now - shown < std::chrono::seconds(5)) return;
    shown = now;
    progress_->update(step, "validation " + std::to_string(std::lround(100 * done)) + "%");
  };
}

void RunOutput::add_validation(int64_t step, const ValidationLosses& losses) {
  log_.add_validation(step, losses);
  validation_loss_ = losses.loss;
}

void RunOutput::finish() { progress_->finish(); }

void RunOutput::warn(const std::vector<std::string>& lines) {
  if (progress_ && !lines.empty()) progress_->end_line();
  hero::warn(lines);
}

}  // namespace hero
