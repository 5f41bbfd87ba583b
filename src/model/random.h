#pragma once
// Random numbers without state: every value is a function of (seed, name, index), drawn by Philox 4x32-10
// (Salmon et al., 2011) on the CPU. Variants of one seed therefore share every initial weight that they have
// in common, and neither the order of draws nor the number of threads matters.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace hero {

/// Fills a floating CPU tensor with U(low, high); element i of the row-major order takes draw i.
void fill_uniform(const at::Tensor& out, uint64_t seed, std::string_view name, double low, double high);

/// The same with N(0, std^2) (Box-Muller).
void fill_normal(const at::Tensor& out, uint64_t seed, std::string_view name, double std);

/// Draw `index` of the stream (seed, name), uniform in [0, 1).
double uniform_at(uint64_t seed, std::string_view name, uint64_t index);

}  // namespace hero
