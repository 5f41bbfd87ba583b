#include "perf/step_time.h"

#include <ATen/ATen.h>

#include <chrono>

#include "model/counts.h"
#include "model/router.h"
#include "ops/cuda_library.h"
#include "perf/memory.h"
#include "train/process.h"
#include "train/run_log.h"

namespace hero {
namespace {

double number(int64_t n) { return static_cast<double>(n); }

// Seconds of the fastest of some calls.
template <typename Work>
double fastest(at::Device device, const Work& work) {
  double best = 0;
  for (int i = 0; i < 6; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    wait_for(device);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    best = i == 0 ? seconds : std::min(best, seconds);
  }
  return best;
}

}  // namespace

Rates measure_rates(const Config& config) {
  prepare_process(config);
  const at::NoGradGuard no_grad;
  const auto device = choose_device(config.train.device, "train.device");
  const int64_t copied = (device.is_cpu() ? int64_t{256} : int64_t{2048}) << 20;
  const auto from = at::ones({copied}, at::TensorOptions(device).dtype(at::kByte));
  auto to = at::empty_like(from);
  wait_for(device);
  const double copy = fastest(device, [&] { to.copy_(from); });
  return {gemm_rate(train_dtype(config), device), 2.0 * number(copied) / copy};
}

std::vector<TimePart> step_time(const Config& config, const Rates& rates) {
  const ModelConfig& m = config.model;
  const TrainConfig& t = config.train;
  const Widths w(config);
  const double tokens = number(t.global_batch * t.sequence),
               micro_batches = number(t.global_batch / t.micro_batch);
  const double passes = t.recompute ? 2 : 1;
  std::vector<TimePart> parts;
  double weights = 0;
  for (const Part& part : model_parts(config)) {
    weights += part.parameters;
    const double operations = (passes * part.forward + part.backward) * tokens;
    // A baseline has the history's row too: it stands beside HERO's.
    if (operations > 0 || part.name == kHistoryPart)
      parts.push_back({part.name, operations / rates.operations});
  }
  if (rates.bytes <= 0) return parts;
  double kept = tokens * 3 * number(m.hidden_size) * w.operand;
  for (int64_t i = 0; i < m.num_hidden_layers; ++i) kept += layer_activation_bytes(config, i, tokens);
  // Written and read in the forward pass, read in the backward pass, the gradient written and read.
  const double activations = kept * (2 * passes + 3);
  // Of every micro-batch: read and packed for both passes; the gradient written, and read and written again
  // where it is added to an earlier one.
  const double packed = micro_batches * weights * (passes + 1) * 2 * w.operand,
               gradients = weights * w.wide * (1 + 3 * (micro_batches - 1));
  // Gradients for their norm and for the update, values and two moments both ways, the leaf.
  const double optimizer = weights * (8 * w.wide + (w.operand == w.wide ? 0 : w.operand));
  parts.push_back({"activations in memory", activations / rates.bytes});
  parts.push_back({"weights and gradients in memory", (packed + gradients) / rates.bytes});
  parts.push_back({"optimizer in memory", optimizer / rates.bytes});
  return parts;
}

}  // namespace hero
