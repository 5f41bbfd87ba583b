#include "model/random.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "ops/cpu/random_pairs.h"

namespace hero {
namespace {

// FNV-1a instead of std::hash: the same stream on every platform.
uint64_t stream_of(std::string_view name) {
  uint64_t hash = 14695981039346656037ull;
  for (const unsigned char c : name) hash = (hash ^ c) * 1099511628211ull;
  return hash;
}

// out = offset + scale * samples of the stream
template <typename Samples>
void fill(const at::Tensor& out, uint64_t seed, std::string_view name, double offset, double scale,
          const Samples& samples) {
  TORCH_CHECK(out.is_cpu(), "fill: expected a CPU tensor, got ", out.device());
  const auto target = out.is_contiguous() ? out : at::empty_like(out, at::MemoryFormat::Contiguous);
  const uint64_t stream = stream_of(name);
  const int64_t n = target.numel();
  AT_DISPATCH_FLOATING_TYPES(target.scalar_type(), "fill", [&] {
    auto* values = target.data_ptr<scalar_t>();
    at::parallel_for(0, (n + 1) / 2, 4096, [&](int64_t begin, int64_t end) {
      double buffer[2 * cpu::kRandomPairs];
      for (int64_t i = begin; i < end; i += cpu::kRandomPairs) {
        const int64_t pairs = std::min(end - i, cpu::kRandomPairs);
        samples(seed, stream, static_cast<uint64_t>(i), pairs, buffer);
        const int64_t count = std::min(2 * pairs, n - 2 * i);  // without the second sample of the last pair
        for (int64_t j = 0; j < count; ++j)
          values[2 * i + j] = static_cast<scalar_t>(offset + scale * buffer[j]);
      }
    });
  });
  if (!out.is_same(target)) out.copy_(target);
}

}  // namespace

void fill_uniform(const at::Tensor& out, uint64_t seed, std::string_view name, double low, double high) {
  fill(out, seed, name, low, high - low, cpu::uniform_pairs);
}

void fill_normal(const at::Tensor& out, uint64_t seed, std::string_view name, double std) {
  fill(out, seed, name, 0, std, cpu::normal_pairs);
}

double uniform_at(uint64_t seed, std::string_view name, uint64_t index) {
  double pair[2];
  cpu::uniform_pairs(seed, stream_of(name), index / 2, 1, pair);
  return pair[index % 2];
}

}  // namespace hero
