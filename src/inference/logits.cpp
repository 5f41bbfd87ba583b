#include "inference/logits.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "hf/load.h"
#include "io/error.h"
#include "loss/loss.h"

namespace hero {
namespace {

at::Tensor stack_lists(const std::vector<std::vector<int64_t>>& lists) {
  std::vector<at::Tensor> rows;
  for (const auto& ids : lists) rows.push_back(at::tensor(ids, at::TensorOptions(at::kLong)));
  return at::stack(rows);
}

}  // namespace

NamedTensors model_logits(const Transformer& model, const std::vector<std::vector<int64_t>>& tokens,
                          bool routing) {
  at::NoGradGuard no_grad;
  NamedTensors out;
  for (size_t n = 0; n < tokens.size(); ++n) {
    const auto output = model.forward(stack_lists({tokens[n]}).to(model.device()));
    const std::string suffix = "." + std::to_string(n);
    out.emplace_back("logits" + suffix, model.logits(output.hidden_TD, 1)[0].contiguous());
    if (!routing) continue;
    for (const auto& r : output.routings) {
      const std::string layer_suffix = suffix + "." + std::to_string(r.layer);
      out.emplace_back("router_logits" + layer_suffix, r.logits.contiguous());
      out.emplace_back("topk_ids" + layer_suffix, r.ids.contiguous());
      out.emplace_back("topk_weights" + layer_suffix, r.weights.contiguous());
    }
  }
  return out;
}

NamedTensors model_gradients(const Transformer& model, const std::vector<std::vector<int64_t>>& tokens) {
  for (size_t n = 0; n < tokens.size(); ++n) {
    if (tokens[n].size() != tokens[0].size() || tokens[n].size() < 2) {
      throw UserError("--gradients: list " + std::to_string(n) + " has " + std::to_string(tokens[n].size()) +
                      " ids, expected lists of equal length of at least 2");
    }
  }
  const auto ids = stack_lists(tokens).to(model.device());
  auto targets = at::full_like(ids, -1);
  targets.slice(1, 0, -1).copy_(ids.slice(1, 1));
  const auto& layout = model.layout();
  const auto losses =
      compute_losses(model, model.forward(ids), targets.view({-1}), ids.size(1),
                     BalanceState::uniform(layout.layers(), layout.experts(), model.device()));
  losses.total.backward();
  NamedTensors out;
  out.emplace_back("loss", losses.total.detach().to(at::kDouble));
  out.emplace_back("lm_loss", losses.lm);
  out.emplace_back("balance_loss", losses.balance);
  for (const auto& p : model.parameters().all()) {
    const auto& gradient = p.leaf.grad();
    const auto full_gradient = gradient.defined() ? gradient : at::zeros_like(p.values);
    for (const auto& part : p.parts) out.emplace_back("grad." + part.name, part.view_of(full_gradient));
  }
  return out;
}

void write_tensors(const std::filesystem::path& path, const NamedTensors& tensors) {
  std::vector<TensorView> views;
  for (const auto& [name, tensor] : tensors) views.push_back(tensor_view(name, tensor));
  write_safetensors(path, views);
}

}  // namespace hero
