#include "train/run_log.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

#include "ops/cuda_library.h"
#include "ops/ops.h"

namespace hero {

using nlohmann::ordered_json;

namespace {

constexpr double kMib = 1 << 20;

ordered_json ranks(const StepRecord& s) {
  const auto slowest = std::ranges::max_element(s.busy_ms);
  const double sum = std::accumulate(s.busy_ms.begin(), s.busy_ms.end(), 0.0);
  return {{"count", s.busy_ms.size()},
          {"slowest", slowest - s.busy_ms.begin()},
          {"busy_ms_max", *slowest},
          {"busy_ms_mean", sum / static_cast<double>(s.busy_ms.size())},
          {"activations_mib", static_cast<double>(s.traffic.activations) / kMib},
          {"history_mib", static_cast<double>(s.traffic.history) / kMib},
          {"history_ms", s.traffic.history_seconds * 1e3}};
}

// One list per metric, with one value per layer.
ordered_json per_layer_values(const std::vector<LayerTotals>& layers) {
  ordered_json out;
  for (const auto& metric : layer_metrics()) {
    auto& list = out[metric.key] = ordered_json::array();
    for (const auto& layer : layers) {
      const auto value = metric.value(layer);
      if (!value) {
        list.push_back(nullptr);
      } else if (metric.integer) {
        list.push_back(static_cast<int64_t>(*value));
      } else {
        list.push_back(*value);
      }
    }
  }
  return out;
}

// {METRIC: {COMPONENT: value or one per decoder layer}, MAX_LOGIT: one per decoder layer}.
ordered_json norms_object(const Norms& norms) {
  ordered_json out;
  norms.for_each(
      [&](const std::string& key, const std::string& component, int64_t layer, std::optional<double> value) {
        auto& entry = component.empty() ? out[key] : out[key][component];
        const auto number = value ? ordered_json(*value) : ordered_json(nullptr);
        if (layer < 0) {
          entry = number;
        } else {
          entry.push_back(number);
        }
      });
  return out;
}

ordered_json validation_values(const ValidationLosses& validation) {
  auto sets = ordered_json::object();
  for (const auto& [name, loss] : validation.sets) sets[name] = loss;
  return {{"valid_loss", validation.loss}, {"valid", sets}};
}

void write_validation(TensorBoardLog& tensorboard, const ValidationLosses& validation, int64_t step,
                      double now) {
  tensorboard.scalar("loss/valid", validation.loss, step, now);
  for (const auto& [name, loss] : validation.sets) tensorboard.scalar("valid/" + name, loss, step, now);
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void write_norms(TensorBoardLog& tensorboard, const Norms& norms, int64_t step, double now) {
  norms.for_each(
      [&](const std::string& key, const std::string& component, int64_t layer, std::optional<double> value) {
        if (!value || !std::isfinite(*value)) return;
        const std::string name = component.empty() ? key : key + "_" + component;
        const std::string tag = layer < 0 ? "norms/" + name : "norms_" + name + "/" + std::to_string(layer);
        tensorboard.scalar(tag, *value, step, now);
      });
}

}  // namespace

RunLog::RunLog(const std::filesystem::path& run)
    : metrics_(run / "metrics.jsonl"), routing_(run / "routing.jsonl"), tensorboard_(run / "tb") {}

void RunLog::write(const StepRecord& s, const LayerStats& layers, const std::optional<Norms>& norms,
                   bool snapshot) {
  const ordered_json per_layer = per_layer_values(layers.totals());
  ordered_json line = {{"step", s.step},
                       {"tokens", s.tokens},
                       {"loss", s.loss},
                       {"lm_loss", s.lm},
                       {"aux_losses", {{"balance", s.balance}, {"z", s.z}, {"coupling", s.coupling}}},
                       {"lr", s.lr},
                       {"grad_norm", s.gradient_norm},
                       {"skipped", s.skipped},
                       {"step_ms", s.milliseconds},
                       {"tokens_per_second", s.tokens_per_second},
                       {"mfu", s.mfu},
                       {"peak_memory_mib", s.peak_memory_mib},
                       {"max_expert_share", s.max_expert_share},
                       {"layers", per_layer}};
  if (s.data_phase) line["data_phase"] = *s.data_phase;
  if (s.mtp) line["mtp_loss"] = *s.mtp;
  if (s.trained_tokens) line["trained_tokens"] = *s.trained_tokens;
  if (s.busy_ms.size() > 1) line["ranks"] = ranks(s);
  if (norms) line["norms"] = norms_object(*norms);
  if (s.validation) line.update(validation_values(*s.validation));
  metrics_.append(line);
  const double now = seconds_since_1970();
  const std::pair<const char*, double> scalars[] = {{"loss/total", s.loss},
                                                    {"loss/lm", s.lm},
                                                    {"loss/balance", s.balance},
                                                    {"loss/z", s.z},
                                                    {"loss/coupling", s.coupling},
                                                    {"optim/lr", s.lr},
                                                    {"optim/grad_norm", s.gradient_norm},
                                                    {"optim/skipped", static_cast<double>(s.skipped)},
                                                    {"speed/tokens_per_second", s.tokens_per_second},
                                                    {"speed/mfu", s.mfu},
                                                    {"memory/peak_mib", s.peak_memory_mib},
                                                    {"routing/max_expert_share", s.max_expert_share}};
  for (const auto& [tag, value] : scalars) tensorboard_.scalar(tag, value, s.step, now);
  if (s.data_phase) tensorboard_.scalar("data/phase", static_cast<double>(*s.data_phase), s.step, now);
  if (s.mtp) tensorboard_.scalar("loss/mtp", *s.mtp, s.step, now);
  for (const auto& metric : layer_metrics()) {
    int64_t l = 0;
    for (const auto& value : per_layer[metric.key]) {
      ++l;
      if (value.is_number()) tensorboard_.scalar(metric.tag(l), value, s.step, now);
    }
  }
  if (norms) write_norms(tensorboard_, *norms, s.step, now);
  if (s.validation) write_validation(tensorboard_, *s.validation, s.step, now);
  if (snapshot) {
    const auto shares = layers.shares_LE();
    ordered_json rows = ordered_json::array();
    for (int64_t l = 0; l < shares.size(0); ++l) {
      const auto row = shares[l].contiguous();
      rows.push_back(
          std::vector<double>(row.const_data_ptr<double>(), row.const_data_ptr<double>() + row.numel()));
    }
    routing_.append({{"step", s.step}, {"expert_share", rows}});
  }
}

void RunLog::add_validation(int64_t step, const ValidationLosses& validation) {
  metrics_.add_to_last(step, validation_values(validation));
  write_validation(tensorboard_, validation, step, seconds_since_1970());
}

void RunLog::truncate_after(int64_t step) {
  metrics_.truncate_after(step);
  routing_.truncate_after(step);
  tensorboard_.truncate_after(step);
}

double peak_memory_mib(at::Device device) {
  if (!device.is_cpu()) {
    const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return static_cast<double>(stats.allocated_bytes[all].peak) / kMib;
  }
  // getrusage includes the memory of the parent process (fork).
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) / 1024.0;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024.0;
}

void reset_peak_memory(at::Device device) {
  if (!device.is_cpu()) c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
}

}  // namespace hero
