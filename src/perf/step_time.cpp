#include "perf/step_time.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <chrono>

#include "config/mtp_layers.h"
#include "model/counts.h"
#include "model/router.h"
#include "ops/cuda_library.h"
#include "ops/gemm_throughput.h"
#include "perf/memory.h"
#include "perf/muon_cost.h"
#include "train/process.h"

namespace hero {
namespace {

// Seconds of the fastest of several calls.
template <typename Work>
double fastest(at::Device device, const Work& work) {
  double best = 0;
  for (int i = 0; i < 6; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    synchronize(device);
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
  synchronize(device);
  const double copy = fastest(device, [&] { to.copy_(from); });
  return {gemm_flops_per_second(train_dtype(config), device), 2.0 * to_double(copied) / copy};
}

std::vector<TimeItem> step_time(const Config& config, const Rates& rates) {
  const ModelConfig& m = config.model;
  const TrainConfig& t = config.train;
  const ElementSizes w(config);
  const double tokens = to_double(t.global_batch * t.sequence),
               micro_batches = to_double(t.global_batch / t.micro_batch);
  const double passes = t.recompute ? 2 : 1;
  std::vector<TimeItem> items;
  double weights = 0, trained = 0;
  for (const CostItem& item : model_costs(config)) {
    weights += item.parameters;
    trained += item.trained;
    const double operations = (passes * item.forward + item.backward()) * tokens;
    // A baseline has a row for the history too, so that rows of compared routers correspond.
    if (operations > 0 || item.name == kHistoryCost)
      items.push_back({item.name, operations / rates.operations});
  }
  const MuonCost muon = muon_model_cost(config);
  if (muon.flops > 0) items.push_back({"Newton-Schulz iterations", muon.flops / rates.operations});
  if (rates.bytes <= 0) return items;
  double saved = tokens * 3 * to_double(m.hidden_size) * w.operand;
  for (int64_t i = 0; i < decoder_layers_with_modules(m); ++i)
    saved += layer_activation_bytes(config, i, tokens);
  // Written and read in the forward pass, read in the backward pass; gradients written and read.
  const double activations = saved * (2 * passes + 3);
  // Per micro-batch: weights are read and packed for both passes; gradients are written, and with
  // accumulation read and written again.
  const double packed = micro_batches * weights * (passes + 1) * 2 * w.operand,
               gradients = trained * w.accum * (1 + 3 * (micro_batches - 1));
  // Gradients are read twice (norm, update); master weights and two moments (Muon: one) are read and written;
  // weights written.
  const double optimizer =
      trained * (8 * w.accum + (w.operand == w.accum ? 0 : w.operand)) - muon.weights * 2 * w.accum;
  items.push_back({"activations in memory", activations / rates.bytes});
  items.push_back({"weights and gradients in memory", (packed + gradients) / rates.bytes});
  items.push_back({"optimizer in memory", optimizer / rates.bytes});
  return items;
}

}  // namespace hero
