#pragma once
// Stateless random numbers: every value is a function of (seed, name, index), computed on the CPU
// (ops/cpu/random_pairs.h) with the same bits on every processor. Model variants with the same seed therefore
// share the initial weights that they have in common, and neither the order of calls nor the number of
// threads matters. data/counter_random.h has another generator, because sample order must not depend on
// LibTorch; existing runs fix the values of both.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace hero {

/// Fills a floating-point CPU tensor with U(low, high); element i in row-major order is sample i.
void fill_uniform(const at::Tensor& out, uint64_t seed, std::string_view name, double low, double high);

/// The same with N(0, std^2) (Box-Muller).
void fill_normal(const at::Tensor& out, uint64_t seed, std::string_view name, double std);

/// Sample `index` of the stream (seed, name), uniform in [0, 1).
double uniform_at(uint64_t seed, std::string_view name, uint64_t index);

}  // namespace hero
