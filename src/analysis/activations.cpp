#include "analysis/activations.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <limits>

namespace hero {

std::vector<Activation> activations(const Transformer& model, const std::vector<int64_t>& tokens) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> states;
  const auto ids = at::tensor(tokens, at::TensorOptions(at::kLong)).unsqueeze(0).to(model.device());
  const auto output = model.forward(ids, {.modules = true}, /*recompute=*/false, &states);
  const auto numbers = moe_layer_numbers(model.config().model);
  std::vector<Activation> out;
  const auto add = [&](std::string name, const at::Tensor& values) {
    const auto type = values.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    out.push_back({std::move(name), values.to(type).flatten(0, -2)});
  };
  add("embedding", states[0]);
  for (size_t i = 0; i < numbers.size(); ++i) {
    const std::string layer = "layer " + std::to_string(i);
    if (numbers[i] > 0) add(layer + " router", output.routings[numbers[i] - 1].logits);
    add(layer, states[i + 1]);
  }
  add("final norm", output.hidden_TD);
  add("logits", model.logits(output.hidden_TD, 1));
  for (size_t k = 0; k < output.modules_TD.size(); ++k) {
    const std::string module = "module " + std::to_string(k + 1);
    add(module + " router", output.routings[moe_layers(model.config().model) + k].logits);
    add(module, output.modules_TD[k]);
  }
  return out;
}

double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (a.sizes() != b.sizes()) return kInfinity;
  const double difference = (a - b).abs().max().item<double>(), size = a.abs().max().item<double>();
  if (std::isnan(difference)) return kInfinity;
  return difference == 0 ? 0.0 : difference / std::max(size, std::numeric_limits<double>::min());
}

}  // namespace hero
