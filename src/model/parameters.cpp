#include "model/parameters.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>

#include "model/random.h"

namespace hero {

Init normal_init(double std) {
  return [std](const at::Tensor& values, uint64_t seed, const std::string& name) {
    fill_normal(values, seed, name, std);
  };
}

Init constant_init(double value) {
  return [value](const at::Tensor& values, uint64_t, const std::string&) { values.fill_(value); };
}

at::Tensor ParameterPart::view_of(const at::Tensor& whole) const {
  const int64_t n = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  return whole.view({-1}).slice(0, offset, offset + n).view(shape);
}

Parameters::Parameters(at::ScalarType dtype, uint64_t seed, at::Device device, InitialValues initial)
    : dtype_(dtype), seed_(seed), device_(device), initial_(initial) {}

at::Tensor Parameters::add(const std::string& name, const std::vector<int64_t>& shape,
                           std::vector<ParameterPart> parts, bool decay,
                           std::optional<at::ScalarType> dtype) {
  at::NoGradGuard no_grad;
  const auto type = dtype.value_or(dtype_), wide = type == at::kDouble ? at::kDouble : at::kFloat;
  const bool sampled = initial_ == InitialValues::kSampled;
  Parameter p{.name = name,
              .values = at::empty(shape, at::TensorOptions(sampled ? at::kCPU : device_).dtype(wide)),
              .leaf = {},
              .decay = decay,
              .component = component_of(name, /*is_vector=*/shape.size() == 1),
              .parts = std::move(parts)};
  int64_t offset = 0;
  for (auto& part : p.parts) {
    part.offset = offset;
    const auto view = part.view_of(p.values);
    if (sampled) part.init(view, seed_, part.name);
    offset += view.numel();
  }
  TORCH_INTERNAL_ASSERT(offset == p.values.numel(), name, ": parts hold ", offset, " of ", p.values.numel(),
                        " values");
  p.values = p.values.to(device_);
  p.leaf = type == wide ? p.values.detach() : sampled ? p.values.to(type) : at::empty_like(p.values, type);
  p.leaf.set_requires_grad(true);
  if (type != wide) p.leaf.set_grad_dtype(wide);
  all_.push_back(std::move(p));
  return all_.back().leaf;
}

at::Tensor Parameters::add(const std::string& name, const std::vector<int64_t>& shape, const Init& init,
                           bool decay, std::optional<at::ScalarType> dtype) {
  return add(name, shape, {ParameterPart{.name = name, .shape = shape, .init = init}}, decay, dtype);
}

at::Tensor Parameters::share(const std::string& suffix) {
  const auto found =
      std::find_if(all_.rbegin(), all_.rend(), [&](const Parameter& p) { return p.name.ends_with(suffix); });
  TORCH_INTERNAL_ASSERT(found != all_.rend(), "no parameter ", suffix, " in the model chunks of this rank");
  ++found->uses;
  return found->leaf;
}

at::Tensor Parameters::add_buffer(const std::string& name, const std::vector<int64_t>& shape) {
  return buffers_.emplace(name, at::zeros(shape, at::TensorOptions(device_).dtype(at::kFloat))).first->second;
}

std::vector<std::pair<std::string, at::Tensor>> Parameters::state_dict() const {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& p : all_) {
    for (const auto& part : p.parts) tensors.emplace_back(part.name, part.view_of(p.values));
  }
  for (const auto& [name, buffer] : buffers_) tensors.emplace_back(name, buffer);
  return tensors;
}

void Parameters::freeze_unless(const std::function<bool(const std::string& name)>& trainable) {
  for (auto& p : all_) p.leaf.set_requires_grad(trainable(p.name));
}

void Parameters::update_leaves() {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> leaves, values;
  for (const auto& p : all_) {
    if (!p.values.defined() || p.leaf.scalar_type() == p.values.scalar_type()) continue;
    leaves.push_back(p.leaf);
    values.push_back(p.values);
  }
  if (!leaves.empty()) at::_foreach_copy_(leaves, values);
}

}  // namespace hero
