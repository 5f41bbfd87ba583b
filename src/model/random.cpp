#include "model/random.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/ops/empty_like.h>

#include <cmath>
#include <numbers>

namespace hero {
namespace {

// FNV-1a instead of std::hash: the same stream on every platform.
uint64_t stream_of(std::string_view name) {
  uint64_t hash = 14695981039346656037ull;
  for (const unsigned char c : name) hash = (hash ^ c) * 1099511628211ull;
  return hash;
}

struct Pair {
  double first, second;
};

// Samples 2i and 2i+1 of a stream, in (0, 1) with 32 random bits each.
Pair uniform_pair(uint64_t seed, uint64_t stream, uint64_t i) {
  at::Philox4_32 engine(seed, stream, i);
  const double a = (static_cast<double>(engine()) + 0.5) * 0x1p-32;
  const double b = (static_cast<double>(engine()) + 0.5) * 0x1p-32;
  return {a, b};
}

template <typename Transform>
void fill(const at::Tensor& out, uint64_t seed, std::string_view name, const Transform& transform) {
  TORCH_CHECK(out.is_cpu(), "fill: expected a CPU tensor, got ", out.device());
  const auto target = out.is_contiguous() ? out : at::empty_like(out, at::MemoryFormat::Contiguous);
  const uint64_t stream = stream_of(name);
  const int64_t n = target.numel();
  AT_DISPATCH_FLOATING_TYPES(target.scalar_type(), "fill", [&] {
    auto* values = target.data_ptr<scalar_t>();
    at::parallel_for(0, (n + 1) / 2, 4096, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Pair pair = transform(uniform_pair(seed, stream, i));
        values[2 * i] = static_cast<scalar_t>(pair.first);
        if (2 * i + 1 < n) values[2 * i + 1] = static_cast<scalar_t>(pair.second);
      }
    });
  });
  if (!out.is_same(target)) out.copy_(target);
}

}  // namespace

void fill_uniform(const at::Tensor& out, uint64_t seed, std::string_view name, double low, double high) {
  fill(out, seed, name,
       [=](Pair u) { return Pair{low + (high - low) * u.first, low + (high - low) * u.second}; });
}

void fill_normal(const at::Tensor& out, uint64_t seed, std::string_view name, double std) {
  fill(out, seed, name, [=](Pair u) {
    const double radius = std * std::sqrt(-2.0 * std::log(u.first)),
                 angle = 2.0 * std::numbers::pi * u.second;
    return Pair{radius * std::cos(angle), radius * std::sin(angle)};
  });
}

double uniform_at(uint64_t seed, std::string_view name, uint64_t index) {
  const Pair pair = uniform_pair(seed, stream_of(name), index / 2);
  return index % 2 ? pair.second : pair.first;
}

}  // namespace hero
