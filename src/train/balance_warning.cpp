#include "train/balance_warning.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdio>
#include <functional>

#include "config/fields.h"

namespace hero {
namespace {

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g%%", 100 * share);
  return text;
}

std::string and_more(int64_t others) {
  if (others == 0) return "";
  return " (and " + std::to_string(others) + (others == 1 ? " more expert)" : " more experts)");
}

// These options are fixed on resume.
std::string balance_options(const Config& config) {
  const auto& r = config.router;
  std::string text = "; in a new run, ";
  text += r.balance == BalanceScope::kNone
              ? "set router.balance (now none)"
              : "raise router.balance_loss (now " + literal(r.balance_loss) + ")";
  if (config.model.is_deepseek())
    text += ", router.bias_update_rate (now " + literal(r.bias_update_rate) + ")";
  return text + " or router.z_loss (now " + literal(r.z_loss) + ")";
}

}  // namespace

BalanceWarning::BalanceWarning(const Config& config)
    : experts_per_layer_(config.model.num_experts),
      experts_per_token_(config.model.num_experts_per_tok),
      advice_(balance_options(config)) {}

std::vector<std::string> BalanceWarning::add(const at::Tensor& assigned_LE) {
  const auto assigned = assigned_LE.contiguous();
  const double* values = assigned.const_data_ptr<double>();
  experts_.resize(static_cast<size_t>(assigned.numel()));
  bool overloaded = false, idle = false;
  for (size_t first = 0; first < experts_.size(); first += static_cast<size_t>(experts_per_layer_)) {
    double total = 0;
    for (int64_t e = 0; e < experts_per_layer_; ++e) total += values[first + e];
    if (total == 0) continue;
    for (int64_t e = 0; e < experts_per_layer_; ++e) {
      Expert& expert = experts_[first + e];
      const double part = values[first + e] / total;
      const bool over = part * static_cast<double>(experts_per_layer_) > kOverloaded;
      expert.overloaded = over ? expert.overloaded + 1 : 0;
      expert.shares = over ? expert.shares + part * static_cast<double>(experts_per_token_) : 0;
      expert.idle = part == 0 ? expert.idle + 1 : 0;
      overloaded |= expert.overloaded >= kSteps;
      idle |= expert.idle >= kSteps;
    }
  }
  std::vector<std::string> lines;
  if (overloaded && !reported_overloaded_) lines.push_back(overloaded_line());
  if (idle && !reported_idle_) lines.push_back(idle_line());
  reported_overloaded_ |= overloaded;
  reported_idle_ |= idle;
  return lines;
}

std::string BalanceWarning::name(size_t index) const {
  const auto i = static_cast<int64_t>(index);
  return "layer " + std::to_string(i / experts_per_layer_ + 1) + ", expert " +
         std::to_string(i % experts_per_layer_) + ": ";
}

// The first line is written when the first experts complete kSteps, so all of them have the same number.
std::string BalanceWarning::overloaded_line() const {
  const auto complete = [](const Expert& expert) { return expert.overloaded >= kSteps; };
  const auto worst = std::ranges::max_element(experts_, std::less(),
                                              [&](const Expert& e) { return complete(e) ? e.shares : -1.0; });
  const double uniform = static_cast<double>(experts_per_token_) / static_cast<double>(experts_per_layer_);
  return name(static_cast<size_t>(worst - experts_.begin())) +
         percent(worst->shares / static_cast<double>(worst->overloaded)) + " of tokens over " +
         std::to_string(kSteps) + " steps, more than five times its uniform share of " + percent(uniform) +
         and_more(std::ranges::count_if(experts_, complete) - 1) + advice_;
}

std::string BalanceWarning::idle_line() const {
  const auto complete = [](const Expert& expert) { return expert.idle >= kSteps; };
  const auto first = std::ranges::find_if(experts_, complete);
  return name(static_cast<size_t>(first - experts_.begin())) + "no tokens over " + std::to_string(kSteps) +
         " steps" + and_more(std::ranges::count_if(experts_, complete) - 1) + advice_;
}

}  // namespace hero
