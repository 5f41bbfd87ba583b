#include "model/layers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numbers>
#include <utility>

#include "ops/ops.h"

namespace hero {

namespace {

double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

// The dimension pair that completes `rotations` rotations over the original context length.
double correction_dim(double rotations, int64_t dims, double theta, const RopeScaling& yarn) {
  const auto length = static_cast<double>(yarn.original_max_position_embeddings);
  return static_cast<double>(dims) * std::log(length / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(theta));
}

// Divides low frequencies by `factor` and keeps high ones, with a linear ramp in between (arXiv 2309.00071,
// section 3.2; bounds as in transformers).
at::Tensor yarn_frequencies(const at::Tensor& inverse, int64_t dims, double theta, const RopeScaling& yarn) {
  if (yarn.factor == 1) return inverse;  // interpolating between equal values would round
  double low = correction_dim(yarn.beta_fast, dims, theta, yarn),
         high = correction_dim(yarn.beta_slow, dims, theta, yarn);
  if (yarn.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dims - 1));
  if (low == high) high += 0.001;
  const auto ramp = ((at::arange(inverse.size(0), inverse.options()) - low) / (high - low)).clamp(0, 1);
  return inverse / yarn.factor * ramp + inverse * (1 - ramp);
}

double yarn_attention_factor(const RopeScaling& yarn) {
  if (yarn.attention_factor > 0) return yarn.attention_factor;
  if (yarn.mscale > 0 && yarn.mscale_all_dim > 0)
    return yarn_mscale(yarn.factor, yarn.mscale) / yarn_mscale(yarn.factor, yarn.mscale_all_dim);
  return yarn_mscale(yarn.factor, 1.0);
}

}  // namespace

double yarn_logit_scale(const RopeScaling& scaling) {
  if (!scaling.is_yarn() || scaling.mscale_all_dim == 0) return 1.0;
  const double m = yarn_mscale(scaling.factor, scaling.mscale_all_dim);
  return m * m;
}

at::Tensor rotary_frequencies(const ModelConfig& model, at::ScalarType dtype) {
  const int64_t dims = model.is_deepseek() ? model.qk_rope_head_dim : model.head_dim;
  const auto options = at::TensorOptions(dtype == at::kDouble ? at::kDouble : at::kFloat);
  const auto exponent = at::arange(0, dims, 2, options) / static_cast<double>(dims);
  const auto frequencies = at::pow(at::full({}, model.rope_theta, options), exponent).reciprocal();
  return model.rope_scaling.is_yarn()
             ? yarn_frequencies(frequencies, dims, model.rope_theta, model.rope_scaling)
             : frequencies;
}

RotaryTable rotary_table(const at::Tensor& positions, const at::Tensor& frequencies,
                         const ModelConfig& model) {
  const auto angle = at::outer(positions.to(frequencies.scalar_type()), frequencies);
  if (!model.rope_scaling.is_yarn()) return {angle.cos(), angle.sin()};
  const double a = yarn_attention_factor(model.rope_scaling);
  return {angle.cos() * a, angle.sin() * a};
}

RotaryTable RotaryCache::rows(const std::vector<int64_t>& positions, const at::Tensor& frequencies,
                              const ModelConfig& model) {
  const auto options = frequencies.options().dtype(at::kLong);
  const int64_t length = *std::ranges::max_element(positions) + 1;
  if (!table_.cos.defined() || table_.cos.size(0) < length)
    table_ = rotary_table(at::arange(2 * length, options), frequencies, model);
  const int64_t first = positions.front(), count = std::ssize(positions);
  const auto follows = [](int64_t a, int64_t b) { return b == a + 1; };
  if (std::ranges::adjacent_find(positions, std::not_fn(follows)) == positions.end())
    return {table_.cos.narrow(0, first, count), table_.sin.narrow(0, first, count)};
  const auto rows = at::tensor(positions, at::kLong).to(frequencies.device());
  return {table_.cos.index_select(0, rows), table_.sin.index_select(0, rows)};
}

CacheBuffer::CacheBuffer(const CacheBuffer& other)
    : tensor_(other.tensor_.defined() ? other.tensor_.clone() : at::Tensor()), length_(other.length_) {}

CacheBuffer& CacheBuffer::operator=(CacheBuffer other) noexcept {
  std::swap(tensor_, other.tensor_);
  std::swap(length_, other.length_);
  return *this;
}

void CacheBuffer::append(const at::Tensor& rows, int64_t first, int64_t count) {
  const int64_t length = length_ + count;
  if (!tensor_.defined() || length > tensor_.size(0)) {
    constexpr int64_t kMinLength = 64;
    auto larger = at::empty({std::max(kMinLength, 2 * length), rows.size(1), rows.size(2)}, rows.options());
    if (length_) larger.slice(0, 0, length_).copy_(tensor_.slice(0, 0, length_));
    tensor_ = larger;
  }
  if (rows.is_cpu() && rows.stride(2) == 1 && rows.stride(1) == rows.size(2)) {
    // Rows are a few hundred bytes: creating tensors would cost more than the copy.
    const int64_t size = rows.element_size(), bytes = rows.size(1) * rows.size(2) * size;
    const auto* from = static_cast<const char*>(rows.const_data_ptr()) + first * rows.stride(0) * size;
    auto* to = static_cast<char*>(tensor_.mutable_data_ptr()) + length_ * bytes;
    for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * bytes, from + i * rows.stride(0) * size, bytes);
  } else {
    tensor_.slice(0, length_, length).copy_(rows.slice(0, first, first + count));
  }
  length_ = length;
}

void KeyValueCache::truncate(int64_t count) {
  for (auto& layer : layers) {
    layer.keys.truncate(count);
    layer.values.truncate(count);
  }
  length = std::min(length, count);
}

std::vector<at::Tensor> Extension::append(const at::Tensor& rows, CacheBuffer LayerCache::* buffer) const {
  std::vector<at::Tensor> all;
  int64_t first = 0;
  for (size_t i = 0; i < caches.size(); ++i) {
    auto& cache = caches[i]->*buffer;
    cache.append(rows, first, counts[i]);
    all.push_back(cache.tensor());
    first += counts[i];
  }
  return all;
}

FeedForward::FeedForward(Parameters& parameters, const std::string& prefix, int64_t hidden,
                         int64_t intermediate, double std) {
  const auto init = normal_init(std);
  gate_up_ = parameters.add(prefix + ".gate_up_proj.weight", {2 * intermediate, hidden},
                            {{prefix + ".gate_proj.weight", {intermediate, hidden}, init},
                             {prefix + ".up_proj.weight", {intermediate, hidden}, init}},
                            /*decay=*/true);
  down_ = parameters.add(prefix + ".down_proj.weight", {hidden, intermediate}, init, true);
}

at::Tensor FeedForward::operator()(const at::Tensor& x_TD) const {
  return ops::linear(ops::swiglu(ops::linear(x_TD, gate_up_)), down_);
}

}  // namespace hero
